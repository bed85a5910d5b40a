/* Replays the step lists that simgrid_probe wrote, with MPI calls: what one member sends and receives, each step as
   soon as those that it waits for are done; messages from one member to another one after another, as on a connection
   (SimGrid would let them share it). Local steps take no time. Prints the seconds of the slowest member.

     simgrid_replay FOLDER        reads FOLDER/steps.<rank>: one line a step: kind peer part bytes, then how many
                                  steps it waits for, and which */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSend, kReceive, kLocal };

struct Step {
  int kind, peer, part, num_after, pending;
  long bytes;
  int* after;
};

static struct Step* read_steps(const char* folder, int rank, int* num_steps) {
  char path[4096];
  snprintf(path, sizeof path, "%s/steps.%d", folder, rank);
  FILE* file = fopen(path, "r");
  if (!file || fscanf(file, "%d", num_steps) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
  struct Step* steps = calloc((size_t)*num_steps + 1, sizeof *steps);
  for (int i = 0; i < *num_steps; ++i) {
    struct Step* s = &steps[i];
    if (fscanf(file, "%d %d %d %ld %d", &s->kind, &s->peer, &s->part, &s->bytes, &s->num_after) != 5)
      MPI_Abort(MPI_COMM_WORLD, 2);
    s->pending = s->num_after;
    s->after = malloc(sizeof(int) * (size_t)(s->num_after + 1));
    for (int k = 0; k < s->num_after; ++k)
      if (fscanf(file, "%d", &s->after[k]) != 1) MPI_Abort(MPI_COMM_WORLD, 2);
  }
  fclose(file);
  return steps;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, n = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  struct Step* steps = read_steps(argv[1], rank, &n);
  MPI_Request* requests = malloc(sizeof(MPI_Request) * (size_t)(n + 1));
  char* is_done = calloc((size_t)n + 1, 1);
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char* line_is_busy = calloc((size_t)size, 1);
  char* is_posted = calloc((size_t)n + 1, 1);
  for (int i = 0; i < n; ++i) requests[i] = MPI_REQUEST_NULL;
  long largest = 1;
  for (int i = 0; i < n; ++i)
    if (steps[i].bytes > largest) largest = steps[i].bytes;
  char* bytes = SMPI_SHARED_MALLOC((size_t)largest); /* one for all members: contents do not matter */
  const double begin = MPI_Wtime(); /* nothing has taken time yet: all begin together */
  for (int num_done = 0; num_done < n;) {
    for (int i = 0; i < n; ++i) { /* followers come later in the list: one pass posts all that can be */
      struct Step* s = &steps[i];
      if (is_posted[i]) continue;
      int ready = 1;
      for (int k = 0; k < s->num_after; ++k) ready &= is_done[s->after[k]];
      if (!ready || (s->kind == kSend && line_is_busy[s->peer])) continue;
      if (s->kind == kSend) line_is_busy[s->peer] = 1;
      is_posted[i] = 1;
      if (s->kind == kSend) MPI_Isend(bytes, (int)s->bytes, MPI_BYTE, s->peer, s->part, MPI_COMM_WORLD, &requests[i]);
      if (s->kind == kReceive) MPI_Irecv(bytes, (int)s->bytes, MPI_BYTE, s->peer, s->part, MPI_COMM_WORLD, &requests[i]);
      if (s->kind == kLocal) {
        is_done[i] = 1;
        ++num_done;
      }
    }
    if (num_done == n) break;
    int which = 0; /* not Waitsome: SMPI polls there, at a tenth of a millisecond a look */
    MPI_Waitany(n, requests, &which, MPI_STATUS_IGNORE);
    if (which == MPI_UNDEFINED) MPI_Abort(MPI_COMM_WORLD, 3);
    is_done[which] = 1;
    if (steps[which].kind == kSend) line_is_busy[steps[which].peer] = 0;
    ++num_done;
  }
  const double seconds = MPI_Wtime() - begin;
  double slowest = 0;
  MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("seconds %.12g\n", slowest);
  SMPI_SHARED_FREE(bytes);
  MPI_Finalize();
  return 0;
}
