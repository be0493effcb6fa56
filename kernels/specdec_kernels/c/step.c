/* Everything of a pass that treats its rows apart, one call between two attentions: the end of a block, the beginning of the next, the head.

The steps are those of specdec_fn.models.llama: output product, residual, norm, gate and up, SiLU, down, residual; norm, query-key-value product,
bias, norms of heads, rotation; norm, vocabulary head. Activations are float32. A row's numbers depend on no other row. */
#include <stdlib.h>

#include "step.h"
#include "team.h"

/* x / sqrt(mean(x^2) + eps) * weight */
static void norm_row(const float *x, const void *weight, int type, int width, float eps, float *out) {
  vec sum = v_zero();
  const int whole = width / LANES * LANES;
  for (int i = 0; i < whole; i += LANES) sum = v_fma(v_load(x + i), v_load(x + i), sum);
  if (whole < width) sum = v_fma(v_part(x + whole, width - whole), v_part(x + whole, width - whole), sum);
  const float factor = 1.0f / sqrtf(v_sum(sum) / (float)width + eps);
  for (int i = 0; i < whole; i += LANES) v_store(out + i, v_mul(v_mul(v_load(x + i), v_all(factor)), numbers_at(weight, type, i)));
  for (int i = whole; i < width; i++) out[i] = x[i] * factor * number_at(weight, type, i);
}

INLINE vec gated(vec gate, vec up) { return v_mul(v_div(gate, v_add(v_all(1.0f), v_exp(v_mul(gate, v_all(-1.0f))))), up); }

/* SiLU(gate) up, in place. */
static void gate_rows(float *gate, const float *up, int count) {
  int i = 0;
  for (; i + LANES <= count; i += LANES) v_store(gate + i, gated(v_load(gate + i), v_load(up + i)));
  if (i < count) {
    float lane[LANES];
    v_store(lane, gated(v_part(gate + i, count - i), v_part(up + i, count - i)));
    memcpy(gate + i, lane, sizeof(float) * (count - i));
  }
}

/* `room` holds two heads. */
static void turn_head(const step *s, const float *from, void *to, int64_t at, int row, int head, float *room) {
  const int size = s->head_dim, half = size / 2;
  const void *weight = head < s->heads ? s->q_norm : s->k_norm;
  if (head < s->heads + s->kv_heads) { /* values are not turned */
    if (weight) norm_row(from, weight, s->type, size, s->eps, room + size), from = room + size;
    const float *cos = s->cos + (int64_t)row * half, *sin = s->sin + (int64_t)row * half;
    for (int i = 0; i < half; i++) {
      room[i] = fmaf(from[i], cos[i], -from[i + half] * sin[i]);
      room[i + half] = fmaf(from[i + half], cos[i], from[i] * sin[i]);
    }
    from = room;
  }
  put_numbers(to, s->type, at, from, size);
}

static int64_t most_of(const step *s, const matrix *const *all, int count, int inputs) {
  int64_t most = 0;
  for (int i = 0; i < count; i++) {
    const int64_t own = all[i] == NULL ? 0 : inputs ? all[i]->inputs : room_for(all[i], s->rows);
    most = own > most ? own : most;
  }
  return most;
}

int specdec_step(const step *s) {
  const matrix *const all[] = {s->output, s->gate_up, s->down, s->qkv, s->head};
  const int rows = s->rows, width = s->width, ffn = s->ffn, qkv = (s->heads + 2 * s->kv_heads) * s->head_dim;
  const int64_t own_floats = (rows * most_of(s, all, 5, 1) + LANES) / LANES * LANES, own_bytes = most_of(s, all, 5, 0) + 64;
  const int64_t own = own_floats * 4 + (own_bytes + 63) / 64 * 64 + s->head_dim * 8 + 64;
  const int64_t shared = (int64_t)rows * (2 * ffn > qkv ? 2 * ffn : qkv) * 4 + (int64_t)rows * width * 4 + 64;
  char *memory = malloc((size_t)(own * s->threads + shared + 128));
  if (!memory) return 1;
  char *base = (char *)(((uintptr_t)memory + 63) & ~(uintptr_t)63);
  float *wide = (float *)(base + own * s->threads), *narrow = wide + (int64_t)rows * (2 * ffn > qkv ? 2 * ffn : qkv);
  work output = {width, 8, 0}, gate_up = {ffn, 8, 0}, down = {width, 8, 0}, heads = {qkv, s->head_dim, 0}, head = {s->head ? s->head->outputs : 0, 8, 0};
#pragma omp parallel num_threads(s->threads)
  {
    char *room = base + own * omp_get_thread_num();
    float *h = (float *)room, *spare = (float *)(room + own_floats * 4 + (own_bytes + 63) / 64 * 64);
    void *codes = room + own_floats * 4;
    prepared q;
    int low, high;
    const float *x = s->x;
    if (s->attended) {
      const int inputs = s->output->inputs;
      get_numbers(s->attended, s->type, 0, h, (int64_t)rows * inputs);
      q = prepare(s->output, h, inputs, rows, codes);
      for (int begun = 0; take(&output, &begun, &low, &high);) {
        multiply(s->output, &q, narrow, width, rows, low, high);
        for (int m = 0; m < rows; m++)
          for (int i = low; i < high; i++) s->out[(int64_t)m * width + i] = x[(int64_t)m * width + i] + narrow[(int64_t)m * width + i];
      }
      x = s->out;
#pragma omp barrier
      for (int m = 0; m < rows; m++) norm_row(x + (int64_t)m * width, s->ffn_norm, s->type, width, s->eps, h + (int64_t)m * width);
      q = prepare(s->gate_up, h, width, rows, codes);
      for (int begun = 0; take(&gate_up, &begun, &low, &high);) {
        multiply(s->gate_up, &q, wide, 2 * ffn, rows, low, high);
        multiply(s->gate_up, &q, wide, 2 * ffn, rows, ffn + low, ffn + high);
        for (int m = 0; m < rows; m++) gate_rows(wide + (int64_t)m * 2 * ffn + low, wide + (int64_t)m * 2 * ffn + ffn + low, high - low);
      }
#pragma omp barrier
      /* Read where it lies: rows are 2 ffn apart. */
      q = prepare(s->down, wide, 2 * ffn, rows, codes);
      for (int begun = 0; take(&down, &begun, &low, &high);) {
        multiply(s->down, &q, narrow, width, rows, low, high);
        for (int m = 0; m < rows; m++)
          for (int i = low; i < high; i++) s->out[(int64_t)m * width + i] += narrow[(int64_t)m * width + i];
      }
#pragma omp barrier
    }
    if (s->qkv) {
      for (int m = 0; m < rows; m++) norm_row(x + (int64_t)m * width, s->attention_norm, s->type, width, s->eps, h + (int64_t)m * width);
      q = prepare(s->qkv, h, width, rows, codes);
      /* Whole heads, so that who multiplied a head turns it. */
      for (int begun = 0; take(&heads, &begun, &low, &high);) {
        multiply(s->qkv, &q, wide, qkv, rows, low, high);
        for (int m = 0; m < rows; m++) {
          float *row = wide + (int64_t)m * qkv;
          if (s->bias)
            for (int i = low; i < high; i++) row[i] += number_at(s->bias, s->type, i);
          for (int i = low; i < high; i += s->head_dim) turn_head(s, row + i, s->turned, (int64_t)m * qkv + i, m, i / s->head_dim, spare);
        }
      }
    }
    if (s->head) {
      for (int m = 0; m < rows; m++) norm_row(x + (int64_t)m * width, s->norm, s->type, width, s->eps, h + (int64_t)m * width);
      q = prepare(s->head, h, width, rows, codes);
      for (int begun = 0; take(&head, &begun, &low, &high);) multiply(s->head, &q, s->logits, s->head->outputs, rows, low, high);
    }
  }
  free(memory);
  return 0;
}

/* One product alone. */
int specdec_rows(const matrix *w, const float *x, float *y, int rows, int threads) {
  const int64_t own = room_for(w, rows) + 64;
  char *memory = malloc((size_t)(own * threads));
  if (!memory) return 1;
  work all = {w->outputs, 8, 0};
#pragma omp parallel num_threads(threads)
  {
    int low, high;
    const prepared q = prepare(w, x, w->inputs, rows, memory + own * omp_get_thread_num());
    for (int begun = 0; take(&all, &begun, &low, &high);) multiply(w, &q, y, w->outputs, rows, low, high);
  }
  free(memory);
  return 0;
}

const char *specdec_isa(void) { return SPECDEC_ISA; }
