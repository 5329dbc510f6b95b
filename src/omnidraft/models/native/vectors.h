/* Floats in vectors of the processor's width, and halves: keys and values in 16 bits.

   Sums keep the order of LANES partial ones, so that no bit of them depends on the width. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "system.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define LANES 16  /* partial sums, in an order that does not depend on the processor's vectors */
#ifndef SPAN      /* floats of a vector; the compiler keeps wider ones than the processor has in memory, which is slow */
#if defined(__AVX512F__)
#define SPAN 16
#elif defined(__AVX2__)
#define SPAN 8
#else
#define SPAN 4
#endif
#endif
#define PIECES (LANES / SPAN)
#define UNROLL _Pragma("GCC unroll 32") /* loops over sums that are to stay in registers */

typedef float Floats __attribute__((vector_size(4 * SPAN)));
typedef int32_t Whole __attribute__((vector_size(4 * SPAN)));
typedef uint32_t Bits __attribute__((vector_size(4 * SPAN)));
typedef int16_t Short __attribute__((vector_size(2 * SPAN)));
typedef uint16_t Half; /* a number of 16 bits, binary16 of IEEE 754 */
typedef Half Halves __attribute__((vector_size(2 * SPAN)));

INLINE Floats floats_at(const float *x) {
    Floats floats;
    memcpy(&floats, x, sizeof floats);
    return floats;
}

INLINE Floats all(float x) {
#if SPAN == 16
    return (Floats){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
#elif SPAN == 8
    return (Floats){x, x, x, x, x, x, x, x};
#else
    return (Floats){x, x, x, x};
#endif
}

INLINE void put(float *x, Floats floats) { memcpy(x, &floats, sizeof floats); }

/* entries k..k + SPAN of `count`, zeros beyond */
INLINE Floats floats_within(const float *x, int64_t k, int64_t count) {
    if (k + SPAN <= count) return floats_at(x + k);
    Floats floats = {0};
    if (k < count) memcpy(&floats, x + k, (count - k) * sizeof *x);
    return floats;
}

INLINE Floats choose(Whole which, Floats yes, Floats no) {
    return (Floats)(((Whole)yes & which) | ((Whole)no & ~which));
}

/* a where it is larger, else b: also where one is no number */
INLINE Floats maximum(Floats a, Floats b) {
#if defined(__AVX512F__) && SPAN == 16
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && SPAN == 8
    return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE__) && SPAN == 4
    return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return choose(a > b, a, b);
#endif
}

/* a * b + sum: rounded once where the processor can, so in every width that it has */
INLINE Floats multiplied(Floats a, Floats b, Floats sum) {
#if defined(__FMA__) && SPAN == 16
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__) && SPAN == 8
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__FMA__) && SPAN == 4
    return (Floats)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)sum);
#elif defined(__aarch64__) && SPAN == 4
    return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + sum;
#endif
}

INLINE float total_of(const float *lanes) {
    float sums[LANES];
    memcpy(sums, lanes, sizeof sums);
    for (int half = LANES / 2; half; half /= 2) /* in pairs: one by one, each would wait for the one before */
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    return sums[0];
}

INLINE float sum_of_products(const float *a, const float *b, int64_t count) {
    Floats sums[PIECES] = {{0}};
    float sum = 0;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int p = 0; p < PIECES; p++) sums[p] += floats_at(a + k + p * SPAN) * floats_at(b + k + p * SPAN);
    for (; k < count; k++) sum += a[k] * b[k];
    return sum + total_of((const float *)sums);
}

INLINE float normalizer(const float *x, int64_t count, float epsilon) {
    return 1 / sqrtf(sum_of_products(x, x, count) / count + epsilon);
}

INLINE float mean_of(const float *x, int64_t count) {
    Floats sums[PIECES] = {{0}};
    float sum = 0;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int p = 0; p < PIECES; p++) sums[p] += floats_at(x + k + p * SPAN);
    for (; k < count; k++) sum += x[k];
    return (sum + total_of((const float *)sums)) / count;
}

/* a normalizer of what is left without the mean */
INLINE float centered_normalizer(const float *x, float mean, int64_t count, float epsilon) {
    Floats sums[PIECES] = {{0}};
    float sum = 0;
    int64_t k = 0;
    for (; k + LANES <= count; k += LANES)
        for (int p = 0; p < PIECES; p++) {
            Floats less = floats_at(x + k + p * SPAN) - mean;
            sums[p] += less * less;
        }
    for (; k < count; k++) sum += (x[k] - mean) * (x[k] - mean);
    return 1 / sqrtf((sum + total_of((const float *)sums)) / count + epsilon);
}

/* e to the power of x, which is 88 at most, to 2 units in the last place; of what is no number it is none */
INLINE Floats exponential(Floats x) {
    const float nearest = 12582912 + 127; /* whole numbers are rounded to, and the last bits are those of an exponent */
    Floats bounded = maximum(x, all(-87)), sum = multiplied(bounded, all(1.44269504f), all(nearest));
    Floats whole = sum - nearest;
    Floats rest = multiplied(whole, all(2.12194440e-4f), multiplied(whole, all(-0.693359375f), bounded));
    Floats value = multiplied(rest, all(1.9875691500e-4f), all(1.3981999507e-3f));
    value = multiplied(value, rest, all(8.3334519073e-3f));
    value = multiplied(value, rest, all(4.1665795894e-2f));
    value = multiplied(value, rest, all(1.6666665459e-1f));
    value = multiplied(value, rest, all(5.0000001201e-1f));
    value = multiplied(value * rest, rest, rest) + 1;
    return maximum(value * (Floats)((Bits)sum << 23), x); /* of numbers, the power is always the larger */
}

/* x bent to between -cap and cap, by the hyperbolic tangent */
INLINE Floats capped(Floats x, float cap) {
    Floats twice = x * (2 / cap);
    return cap - 2 * cap / (1 + exponential(choose(twice > 88, all(88), twice)));
}

/* ---- halves */

INLINE Floats floats_of(const Half *x) {
#if defined(__AVX512F__) && SPAN == 16 && !defined(PLAIN)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
#elif defined(__F16C__) && SPAN == 8 && !defined(PLAIN)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
#elif defined(__F16C__) && SPAN == 4 && !defined(PLAIN)
    return (Floats)_mm_cvtph_ps(_mm_loadl_epi64((const void *)x));
#elif defined(__aarch64__) && SPAN == 4 && !defined(PLAIN)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
#else
    Halves halves;
    memcpy(&halves, x, sizeof halves);
    Whole bits = __builtin_convertvector(halves, Whole), size = (bits & 0x7fff) << 13;
    /* of small exponents, and of those without; and of what is infinite or no number, whose exponent is the largest */
    Floats finite = (Floats)size * 0x1p112f, other = (Floats)(size | 0x7f800000);
    Floats value = choose(size >= 0x0f800000, other, finite);
    return (Floats)((Bits)value | ((Bits)bits & 0x8000) << 16);
#endif
}

/* the nearest half, the even one of two; infinite from 65,520 on */
INLINE Half half_of(float x) {
#if defined(__F16C__) && !defined(PLAIN)
    return (Half)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    union { float value; uint32_t bits; } number = {x}, small;
    uint32_t sign = number.bits >> 16 & 0x8000, size = number.bits & INT32_MAX;
    if (size > 0x7f800000) return (Half)(sign | 0x7e00);
    if (size >= 0x477ff000) return (Half)(sign | 0x7c00);
    if (size >= 0x38800000) return (Half)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
    small.bits = size;
    small.value += 0.5f; /* whose last bit is worth as much as that of the smallest halves */
    return (Half)(sign | (small.bits - 0x3f000000));
#endif
}
