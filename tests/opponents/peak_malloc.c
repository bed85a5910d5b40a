// Counts what a process has allocated in blocks of 4 KiB and more, which is where tensors are, and what it has mapped for writing: the
// most at once. Loaded before libc (LD_PRELOAD) into Piper and its opponents alike. At the end the figure goes to the file $PEAK_FILE.PID; a process that
// calls peak_reset() counts from then on, above what was allocated at that moment.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kLeast = 4096 };

static atomic_long live, peak, base;

static void added(long size) {
  const long now = atomic_fetch_add(&live, size) + size;
  for (long most = atomic_load(&peak); now > most && !atomic_compare_exchange_weak(&peak, &most, now);) {}
}

static void counted(void* block) {
  const long size = block ? (long)malloc_usable_size(block) : 0;
  if (size >= kLeast) added(size);
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

// malloc's own mappings do not come by here. A mapping is forgotten as a whole, as it was made.
enum { kMappings = 1024 };
static atomic_long mapped_at[kMappings], mapped_bytes[kMappings];

void* mmap(void* wish, size_t size, int protection, int flags, int file, off_t offset) {
  void* place = (void*)syscall(SYS_mmap, wish, size, protection, flags, file, offset);
  if (place == MAP_FAILED || !(protection & PROT_WRITE)) return place;
  for (int i = 0; i < kMappings; ++i) {
    long empty = 0;
    if (!atomic_compare_exchange_strong(&mapped_at[i], &empty, (long)place)) continue;
    atomic_store(&mapped_bytes[i], (long)size);
    added((long)size);
    break;
  }
  return place;
}

void* mmap64(void* wish, size_t size, int protection, int flags, int file, off_t offset) {
  return mmap(wish, size, protection, flags, file, offset);
}

int munmap(void* place, size_t size) {
  for (int i = 0; i < kMappings; ++i)
    if (atomic_load(&mapped_at[i]) == (long)place) {
      atomic_fetch_sub(&live, atomic_exchange(&mapped_bytes[i], 0));
      atomic_store(&mapped_at[i], 0);
      break;
    }
  return (int)syscall(SYS_munmap, place, size);
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
