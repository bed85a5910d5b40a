/* MPI_Alltoallv of equal parts; rank 0 prints {"bytes a pair": seconds}. usage: alltoallv_mpi ROUNDS BYTES... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median_seconds(int bytes, int rounds, int rank, int size) {
  char* sent = malloc((size_t)bytes * size + 1);
  char* received = malloc((size_t)bytes * size + 1);
  int* counts = malloc(sizeof(int) * size);
  int* places = malloc(sizeof(int) * size);
  double* seconds = malloc(sizeof(double) * rounds);
  int repeats = bytes > 0 ? (8 << 20) / (bytes * size) : 200;
  repeats = repeats < 3 ? 3 : repeats > 200 ? 200 : repeats;
  memset(sent, rank, (size_t)bytes * size);
  for (int i = 0; i < size; ++i) counts[i] = bytes, places[i] = i * bytes;
  for (int round = -1; round < rounds; ++round) { /* the first warms up */
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    for (int i = 0; i < repeats; ++i)
      MPI_Alltoallv(sent, counts, places, MPI_CHAR, received, counts, places, MPI_CHAR,
                    MPI_COMM_WORLD);
    if (round >= 0) seconds[round] = (MPI_Wtime() - begin) / repeats;
  }
  for (int i = 0; i < size; ++i)
    if (bytes > 0 && received[(size_t)i * bytes] != i) MPI_Abort(MPI_COMM_WORLD, 1);
  qsort(seconds, rounds, sizeof(double), by_value);
  const double median = seconds[rounds / 2];
  free(sent), free(received), free(counts), free(places), free(seconds);
  return median;
}

int main(int argc, char** argv) {
  int rank = 0, size = 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 2; i < argc; ++i) {
    const double seconds = median_seconds(atoi(argv[i]), atoi(argv[1]), rank, size);
    if (rank == 0) printf("%s\"%s\": %.9f%s", i == 2 ? "{" : ", ", argv[i], seconds,
                          i == argc - 1 ? "}\n" : "");
  }
  MPI_Finalize();
  return 0;
}
