/* A whole pass: steps and attentions in turn. What Python would set between them is set here, since a call of Python costs as much as a small step. */
#if defined(__linux__)
#define _GNU_SOURCE
#include <sys/resource.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "attend.h"
#include "step.h"

typedef struct {
  const step *steps; /* layers + 2 of them: parameters and sizes alone */
  const attention *like; /* one of the attentions, but for rows and cache */
  void *const *keys, *const *values; /* [layers] */
  int32_t layers, rows, threads, wanted; /* wanted: rows that need logits; -1: none, and the last block ends once its keys are written */
  const matrix *embedding;
  const int64_t *tokens; /* [rows] */
  const float *cos, *sin;
  const int64_t *places; /* [wanted]: which rows; NULL: the first `wanted` */
  float *logits;         /* [wanted, vocab] */
} pass;

/* How many threads a pass takes. A team meets some two hundred times in a pass, and waits each time for whoever the system has put aside: where others
want the cores, one thread alone is many times as fast (42 ms in place of 970 beside four busy processes on two cores). So a thread that is put aside
often goes on alone, for some passes, for twice as many the next time, and then tries a team again. Numbers do not depend on it. */
#define LEAST_ALONE 16
#define MOST_ALONE 512
static atomic_int alone, patience = LEAST_ALONE;

typedef struct {
  long switches;
  struct timespec time;
} watch;

static watch now(void) {
  watch w = {0, {0, 0}};
#if defined(__linux__)
  struct rusage used;
  if (getrusage(RUSAGE_THREAD, &used) == 0) w.switches = used.ru_nivcsw;
  clock_gettime(CLOCK_MONOTONIC, &w.time);
#endif
  return w;
}

/* Put aside four times, and more often than every eight milliseconds. */
static int crowded(const watch *since) {
  const watch w = now();
  const double milliseconds = 1e3 * (w.time.tv_sec - since->time.tv_sec) + 1e-6 * (w.time.tv_nsec - since->time.tv_nsec);
  return w.switches - since->switches >= 4 && (w.switches - since->switches) * 8 > milliseconds;
}

/* 0; 1 where there is no memory, 2 where a token is outside the vocabulary, before anything is written. */
int specdec_pass(const pass *p) {
  for (int m = 0; m < p->rows; m++)
    if (p->tokens[m] < 0 || p->tokens[m] >= p->embedding->outputs) return 2;
  const step *first = p->steps;
  const int64_t width = (int64_t)p->rows * first->width, size = first->type == AS_F32 ? 4 : 2;
  const int64_t heads = (int64_t)p->rows * (first->heads + 2 * first->kv_heads) * first->head_dim * size;
  const int64_t attended = (int64_t)p->rows * first->heads * first->head_dim * size;
  const int64_t gathered = (int64_t)(p->wanted > p->rows ? p->wanted : 0) * first->width * 4;
  char *memory = malloc((size_t)(2 * width * 4 + heads + attended + gathered + 256));
  if (!memory) return 1;
  float *x = (float *)memory, *out = x + width;
  char *turned = (char *)(out + width), *seen = turned + heads;
  int failed = 0, threads = p->threads;
  if (threads > 1 && atomic_load(&alone) > 0) atomic_fetch_sub(&alone, 1), threads = 1;
  const int team = threads > 1;
  const watch start = now();
  for (int m = 0; m < p->rows; m++) take_row(p->embedding, p->tokens[m], first->type, x + (int64_t)m * first->width);
  for (int layer = 0; layer <= p->layers && !failed; layer++) {
    step s = first[layer];
    s.rows = p->rows, s.threads = threads, s.x = x, s.out = out, s.cos = p->cos, s.sin = p->sin, s.turned = turned;
    s.attended = layer ? seen : NULL;
    failed = specdec_step(&s);
    if (layer) {
      float *other = x;
      x = out, out = other;
    }
    if (layer == p->layers || failed) break;
    attention a = *p->like;
    a.rows = p->rows, a.threads = threads, a.keys = p->keys[layer], a.values = p->values[layer];
    a.query = turned, a.key = turned + (int64_t)a.heads * a.head_dim * size, a.value = (const char *)a.key + (int64_t)a.kv_heads * a.head_dim * size;
    a.stride = (int64_t)(a.heads + 2 * a.kv_heads) * a.head_dim, a.out = seen;
    if (p->wanted < 0 && layer == p->layers - 1) a.heads = 0; /* nothing is asked of it but that it writes */
    failed = specdec_attend(&a);
    if (p->wanted < 0 && layer == p->layers - 1) break;
    if (threads > 1 && crowded(&start)) {
      threads = 1;
      atomic_store(&alone, atomic_load(&patience));
      if (atomic_load(&patience) < MOST_ALONE) atomic_store(&patience, 2 * atomic_load(&patience));
    }
  }
  if (p->wanted > 0 && !failed) {
    step s = first[p->layers + 1];
    if (gathered) out = (float *)(seen + (attended + 63) / 64 * 64);
    for (int m = 0; m < p->wanted && p->places; m++) memcpy(out + (int64_t)m * first->width, x + p->places[m] * first->width, sizeof(float) * first->width);
    s.rows = p->wanted, s.threads = threads, s.x = p->places ? out : x, s.logits = p->logits;
    failed = specdec_step(&s);
  }
  if (team && threads > 1) atomic_store(&patience, LEAST_ALONE);
  free(memory);
  return failed;
}
