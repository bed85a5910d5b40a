// Small kernels with one fault each (faults_test.cpp), and some without. Every thread of the grid
// has a float of x.
#pragma once

namespace piper::testing::cuda_on_cpu {

void without_fault(float* x);
void writes_by_block(float* x);
void ends_before_the_barrier(float* x);
void meets_in_two_lines(float* x);
void shuffles_half_a_warp(float* x);
void shuffles_in_a_part_of_a_warp(float* x);
void shuffles_while_others_meet(float* x);
void reads_its_neighbour_at_once(float* x);
void counts_together(float* x);
void shuffles_in_place_of_a_barrier(float* x);
void meets_its_warp(float* x);
void meets_its_warp_alone(float* x);
void reads_a_float_too_far(float* x);
void writes_behind(float* x);
void reads_what_nobody_wrote(float* x);

}  // namespace piper::testing::cuda_on_cpu
