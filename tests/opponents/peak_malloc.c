// Counts what a process has allocated in blocks of 4 KiB and more, which is where tensors are: the most at once. Loaded before
// libc (LD_PRELOAD) into Piper and its opponents alike. At the end the figure goes to the file $PEAK_FILE.PID; a process that
// calls peak_reset() counts from then on, above what was allocated at that moment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kLeast = 4096 };

static atomic_long live, peak, base;

static void counted(void* block) {
  const long size = block ? (long)malloc_usable_size(block) : 0;
  if (size < kLeast) return;
  const long now = atomic_fetch_add(&live, size) + size;
  for (long most = atomic_load(&peak); now > most && !atomic_compare_exchange_weak(&peak, &most, now);) {}
}

static void forgotten(void* block) {
  const long size = block ? (long)malloc_usable_size(block) : 0;
  if (size >= kLeast) atomic_fetch_sub(&live, size);
}

// glibc's own names of what this file replaces.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t size) {
  void* block = __libc_malloc(size);
  counted(block);
  return block;
}

void* calloc(size_t number, size_t size) {
  void* block = __libc_calloc(number, size);
  counted(block);
  return block;
}

void* realloc(void* old, size_t size) {
  const long before = old ? (long)malloc_usable_size(old) : 0;
  void* block = __libc_realloc(old, size);
  if (block || size == 0) {
    if (before >= kLeast) atomic_fetch_sub(&live, before);
    counted(block);
  }
  return block;
}

void* memalign(size_t alignment, size_t size) {
  void* block = __libc_memalign(alignment, size);
  counted(block);
  return block;
}

void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = memalign(alignment, size);
  return *block || size == 0 ? 0 : ENOMEM;
}

void free(void* block) {
  forgotten(block);
  __libc_free(block);
}

void peak_reset(void) {
  atomic_store(&base, atomic_load(&live));
  atomic_store(&peak, atomic_load(&live));
}

long peak_bytes(void) { return atomic_load(&peak) - atomic_load(&base); }

__attribute__((destructor)) static void report(void) {
  const char* path = getenv("PEAK_FILE");
  char name[4096];
  if (!path || snprintf(name, sizeof name, "%s.%d", path, (int)getpid()) >= (int)sizeof name) return;
  FILE* file = fopen(name, "w");
  if (!file) return;
  fprintf(file, "%ld\n", peak_bytes());
  fclose(file);
}
