// Loaded by the CUDA driver into a program (CUDA_INJECTION64_PATH), it writes every kernel, copy and clearing of memory
// that the GPU did, those of captured graphs too, as they ran, to the file $KERNEL_TIMES.PID: a line each of kind (K,
// C, S), begin and end in ns, stream, and the kernel's name or the bytes. CUPTI's activities, which lengthen a step of
// Swin-B by 1.5 %.
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static FILE* out;

static void OfferBuffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *size = 16 << 20;
  *most_records = 0;  // as many as fit
  *buffer = aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, *size);
}

static void WriteBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid) {
  (void)context, (void)stream, (void)size;
  for (CUpti_Activity* record = NULL; cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS;) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const CUpti_ActivityKernel10* kernel = (const void*)record;
      fprintf(out, "K\t%llu\t%llu\t%u\t%s\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end,
              kernel->streamId, kernel->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const CUpti_ActivityMemcpy6* copy = (const void*)record;
      fprintf(out, "C\t%llu\t%llu\t%u\t%llu bytes\n", (unsigned long long)copy->start, (unsigned long long)copy->end,
              copy->streamId, (unsigned long long)copy->bytes);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const CUpti_ActivityMemset4* set = (const void*)record;
      fprintf(out, "S\t%llu\t%llu\t%u\t%llu bytes\n", (unsigned long long)set->start, (unsigned long long)set->end,
              set->streamId, (unsigned long long)set->bytes);
    }
  }
  free(buffer);
}

static void WriteRest(void) {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  fflush(out);
}

// What the driver calls; 1: all is well.
int InitializeInjection(void) {
  const char* const name = getenv("KERNEL_TIMES");
  char path[4096];
  if (name == NULL || snprintf(path, sizeof path, "%s.%d", name, (int)getpid()) >= (int)sizeof path) return 0;
  out = fopen(path, "w");
  if (out == NULL) {
    perror(path);
    return 0;
  }
  const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                      CUPTI_ACTIVITY_KIND_MEMSET};
  CUptiResult result = cuptiActivityRegisterCallbacks(OfferBuffer, WriteBuffer);
  for (size_t i = 0; result == CUPTI_SUCCESS && i < sizeof kinds / sizeof *kinds; ++i) result = cuptiActivityEnable(kinds[i]);
  if (result != CUPTI_SUCCESS) {
    fprintf(stderr, "kernel_times: CUPTI's error %d\n", result);
    return 0;
  }
  atexit(WriteRest);
  return 1;
}
