"""What is read of C++ against what a compiler makes of it: one program of all snippets, compiled at once."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests import processes

PRELUDE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define	TABBED	7
#define TWICE(x) (2 * (x))
#define ADD3(a, ...) add3(a, __VA_ARGS__)
#define GLUE(a, b) a ## b
#define TEXT(x) #x
#define LONG_ONE(x) do { \
    x += 1; \
} while (0)
#define SELF SELF_VALUE + 1
#define SELF_VALUE 4 /* which goes
   on */ * 2
const float kOne = 1;
const int kTwo = 2.5;
static const unsigned kBig = 3000000000u;
constexpr int kTile = 16, kNothing = 0;
enum Mode { MODE_A, MODE_B = 5, MODE_C };
enum class Kind : uint8_t { kFirst = 3, kSecond };
using index_type = int32_t;
typedef unsigned char byte_type;
namespace a {
static const int K = 3;
namespace b { static const int K = 4; int get() { return K; } }
int get() { return K; }
}
inline int add3(int a, int b, int c = 100) { return a + b * 10 + c * 100; }
template <typename T> inline T ceil_div(T n, T d) { return (n + d - 1) / d; }
template <typename T, int N> T scaled(T n) { T made = n; made *= 0.5; return made * N; }
static auto truncated(float x) -> int { return x; }
int grown(std::vector<int> v) { v.push_back(1); return v.size(); }
int grow(std::vector<int>& v) { v.push_back(1); return v.size(); }
int held(const std::vector<int>& v) { return v.size(); }
float halved(float x) { return x / 2; }
int fact(int n) { return n <= 1 ? 1 : n * fact(n - 1); }
int given(std::optional<int64_t> n = std::nullopt) { return n ? 1 : 0; }
std::tuple<int, float> both(int n) { return {n, n / 2.0f}; }
extern "C" int in_c(int n) { return n + 1; }
"""
BODIES = r"""
return -7 / 2;
return -7 % 3;
return 7 % -3;
return 7 / 2.0;
return 7 / 2.0f;
float s = 0; int n = 10; s = n; return std::ceil(s / 4);
int n = 10; int m = n; m *= 0.25; return m * 4;
int m = 7; m /= 2.0; return m;
int m = 7; m += 0.9; return m;
float f = 0.1f; return f;
float f = 0.1; return f * 3;
double d = 0.1f; return d;
return 0.1f + 0.2f;
return 0.1f + 0.2;
return 16777217 * 1.0f;
return 1 / 3 * 3.0;
return kOne / 2;
return kTwo * 2;
return kBig + kBig;
return kBig * 2.0;
return a::get() * 10 + a::b::get();
return a::K + a::b::K;
return TABBED;
return CEIL_DIV(CEIL_DIV(100, 7), 4);
return TWICE(1 + 2) + TWICE(TWICE(3));
return ADD3(1, 2) + ADD3(1, 2, 3);
int GLUE(n, 1) = 5; return n1;
return std::string(TEXT(a + b[0])).size();
int x = 1; if (x) LONG_ONE(x); else x = 9; return x;
return SELF;
return SELF_VALUE;
return 010 + 0x1F + 0b101 + 1'000;
return 0xFFFFFFFF;
return 0xFFFFFFFF + 1;
return 4294967295u + 1;
return 2147483648;
return 2147483647u + 1u;
return 1e3;
return 1.5f;
return .5;
return 5.;
return 1 << 4 | 1;
return 1 << 2 + 1;
return -8 >> 1;
return 1ull << 40;
return 6 & 3 ^ 1 | 8;
return ~5;
return !5 + !0;
return -5u;
return -true;
return (uint8_t)300;
return (int8_t)200;
return (unsigned char)(-1);
uint8_t b = 250; b += 10; return b;
uint8_t b = 200; return b + b;
byte_type b = 257; return b;
int16_t s = 70000; return s;
uint32_t u = -1; return u;
unsigned u = 3; return u - 4 > 0;
unsigned u = 3; return -1 < u;
int64_t n = -1; unsigned u = 3; return n < u;
size_t n = 2; return n - 3;
unsigned long long n = 5; return n * n;
long n = 1L << 40; return n;
long long n = 1LL << 40; int m = n; return m;
index_type n = 3.9; return n;
return static_cast<int>(2.7) + int(-2.7) + (int)3.9f;
return static_cast<float>(1) / 3;
return (float)1 / (double)3;
return double(7) / 2;
return bool(5) + bool(0.0);
bool b = 7; return b + 1;
bool b = 0.5; return b;
int n = true; return n / 2;
int n{5}; int m(6); return n * m;
int n{}; return n;
auto n = 5; n = 7.9; return n;
auto f = 5.0f; f = f / 3; return f;
const auto h = halved(3); return h;
return truncated(3.9);
return ceil_div(7, 2) + ceil_div<int64_t>(9, 2);
return ceil_div<float>(7, 2);
return ceil_div(7.0, 2.0);
return scaled<int, 3>(5);
return scaled<float, 3>(5);
return in_c(4);
return fact(10);
int i = 3; int j = i++; return i * 10 + j;
int i = 3; int j = ++i; return i * 10 + j;
int i = 3; int j = i-- - --i; return j;
int i = 1; i <<= 3; i >>= 1; i |= 1; i ^= 7; i &= 6; i %= 4; return i;
int a, b; a = b = 3; return a + b;
int a = 1, b = a + 1; return b;
int n = 5; int& r = n; r = 9; return n;
int n = 5; const int& r = n; n = 9; return r;
int n = 5; auto r = n; n = 9; return r;
float f = 1; auto& r = f; r = 7 / 2; return f;
int n = 5; if (int m = n - 5) return m; else return m - 1;
int n = 3; { int n = 4; n += 1; } return n;
int t = 0; for (int i = 0; i < 4; i++) for (int j = 0; j < i; ++j) t += i * j; return t;
int t = 0; for (int i = 0; i < 10; i++) { if (i == 3) continue; if (i == 6) break; t += i; } return t;
int t = 0; for (int i = 0, j = 10; i < j; i++, j--) t += j; return t;
int i = 0; while (true) { if (++i > 5) break; } return i;
int i = 0; do { i += 2; if (i == 4) continue; } while (i < 3); return i;
int t = 0; for (;;) { t++; for (int i = 0;; i++) { if (i == 2) break; t += 9; } if (t > 50) break; } return t;
int n = 10; if (n > 5 && n < 20 || n == 0) return 1; return 0;
int a = 3, b = 4; if (a && b) return 1; return 0;
int a = 3, b = 4; if (a & b) return 1; return 0;
int a = 3, b = 4; if (a * b) return 1; return 0;
int i = 3, n = 4, b = 5, c = 1; if (i < n) return c > (b); return true;
int i = 3, n = 4; if (i < n) return n > (i); else return false;
int n = 4; return n > 3 ? 1 : 2.5;
int n = 4; return (n > 3 ? 1 : 2.5) / 2;
int n = 4; return (n > 3 ? 7 : n) / 2;
int n = 0; int m = n > 0 ? 10 / n : -1; return m;
int n = 2; return n == 1 ? 10 : n == 2 ? 20 : 30;
int n = 0; bool b = n != 0 && 10 / n > 1; return b;
std::vector<int> a{1, 2}; auto b = a; b.push_back(1); return a.size() * 10 + b.size();
std::vector<int> a{1, 2}; std::vector<int> b = a; b[0] = 9; return a[0];
std::vector<int> a{1, 2}; auto& b = a; b.push_back(1); return a.size();
std::vector<int> a{1, 2}; int n = grown(a); return a.size() * 10 + n;
std::vector<int> a{1, 2}; int n = grow(a); return a.size() * 10 + n;
std::vector<int> a{1, 2}; return held(a);
std::vector<int> a; a.push_back(2.9); return a[0];
std::vector<float> a{1, 2}; return a[0] / 2;
std::vector<float> a(2); a[1] = 1; return a[1] / 2 + a[0];
std::vector<int64_t> a(3, 7); a[1] += 5; a[2]++; return a[0] + a[1] * 10 + a[2] * 100;
std::vector<int> a{3, 4, 5}; int t = 0; for (auto x : a) t += x; return t;
std::vector<int> a{3, 4, 5}; for (auto& x : a) x *= 2; return a[2];
std::vector<int> a{3, 4, 5}; for (auto x : a) x *= 2; return a[2];
std::vector<int> a{3, 4}; auto& e = a[0]; e = 8; return a[0];
std::vector<int> a; return a.size() - 1 > 0;
std::vector<std::vector<int>> a(2); a[0].push_back(3); return a[0].size() * 10 + a[1].size();
std::vector<int> a{1}; std::vector<std::vector<int>> b{a}; b[0].push_back(3); return a.size();
std::vector<int> a{3, 4}; int i = 0; a[i++] += 5; return a[0] * 10 + i;
return std::max(3, 4) + std::min(2.5, 1.5);
return std::max<float>(1, 2) / 4;
return std::min({4, 2, 3});
return std::abs(-3) / 2 + std::abs(-2.5f);
return std::sqrt(2.0f);
return std::sqrt(2);
return std::pow(2, 3) / 16;
return std::floor(-2.5) + std::ceil(-2.5) + std::round(-2.5) + std::trunc(-2.5);
return std::ceil(7 / 2);
return std::ceil(7 / 2.0f) / 3;
std::optional<int64_t> n = 0; return n ? 1 : 2;
std::optional<int64_t> n; return n.has_value() ? 1 : 2;
std::optional<float> n = 3; return *n / 2;
std::optional<int> n; n = 2.9; return n.value();
std::optional<int> n = 4; n = std::nullopt; return n.value_or(7);
return given() * 10 + given(0);
std::optional<int> n = 4; return n == 4 && n != std::nullopt && !(!n);
auto [n, f] = both(3); return n * 10 + f;
auto t = both(5); return std::get<1>(t) + std::get<0>(t);
return MODE_C * 10 + MODE_B;
return static_cast<int>(Kind::kSecond);
Mode m = MODE_B; return m == Mode::MODE_B;
static constexpr int kLocal = kTile * 2; return kLocal;
using local = float; local f = 7 / 2; return f / 2;
return sizeof(float) + sizeof(int64_t) + sizeof(bool) + sizeof(unsigned long);
std::string s = "a" "b"; s += "c"; return s == "abc" && s != "ab";
return std::string("a // b").size();
return std::to_string(3).size() + std::to_string(2.5f).size();
int n = 1; /* a // b */ n = 2; // n = 3; \
n = 4;
return n;
int n = 4 /* in */ / /* the */ 2; return n;
int n = 5; int m = n/*comment*/; return m;
const char* c = "/* no comment */"; return std::string(c).size();
return kNothing;
"""
CONDITIONS = {
    "1 != 2": 1,
    "0xFF == 255": 1,
    "6 & 2": 1,
    "6 & 1": 0,
    "12080 / 1000 == 12": 1,
    "true": 1,
    "false || UNKNOWN": 0,
    "defined TABBED && TABBED > 6": 1,
    "!defined(TABBED)": 0,
    "defined(UNKNOWN) && UNKNOWN(3)": None,
    "(1)": 1,
    "TWICE(3) == 6": 1,
    "CEIL_DIV(7, 2) == 4 && -7 / 2 == -3": 1,
    "1 ? 0 : 1": 0,
    "!0 == 1": 1,
    "3 > 2 > 1": 0,
    "1 << 4 == 16": 1,
    "~0 == -1": 1,
    "010 == 8": 1,
    "-1 > 0u": 1,
    "1L << 40": 1,
    "7 % 4 == 3 && (5 ^ 1) == 4 && (4 | 1) == 5": 1,
    "0 && 1 / 0": 0,
}
NESTED = r"""
#if 0
#if 1
n = 1;
#else
n = 2;
#endif
#elif TABBED == 7
#	ifdef	TABBED
#if(TABBED)
n += 3;
#elif(1)
n += 100;
#else
n = 4;
#endif
#	else
n = 5;
#	endif
#elif 1
n = 6;
#else
n = 7;
#endif
#ifndef TABBED
n = 8;
#endif
#undef TABBED
#ifdef TABBED
n = 9;
#endif
#define	TABBED	7
# /* a null directive */
return n;
"""


def _snippets() -> list[str]:
    bodies: list[str] = []
    for line in BODIES.strip().splitlines():
        if bodies and "return" not in bodies[-1]:
            bodies[-1] += "\n" + line
        else:
            bodies.append(line)
    conditions = [one for one, holds in CONDITIONS.items() if holds is not None]
    bodies += [f"int n = 0;\n#if {one}\nn = 1;\n#endif\nreturn n;" for one in conditions]
    return [*bodies, "int n = 10;" + NESTED]


def test_values_are_those_of_a_compiler(tmp_path: Path) -> None:
    from tests.rehearsal.test_cuda_sources import compiled

    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "a rehearsal needs a C++ compiler"
    snippets = _snippets()
    functions = "\n".join(f"auto run{place}() {{ {body}\n}}" for place, body in enumerate(snippets))
    shown = """
#include <cstdio>
template <typename T> void show(T value) {
    if constexpr (std::is_floating_point_v<T>) std::printf("f %.17g\\n", (double)value);
    else std::printf("i %lld\\n", (long long)value);
}
"""
    calls = "\n".join(f"show(run{place}());" for place in range(len(snippets)))
    source = tmp_path / "snippets.cpp"
    source.write_text(PRELUDE + functions + shown + f"int main() {{ {calls} }}", encoding="utf-8")
    built = [compiler, "-std=c++20", "-O0", "-w", str(source), "-o", str(tmp_path / "snippets")]
    processes.checked(built)
    said = processes.checked([tmp_path / "snippets"])
    module = compiled(PRELUDE + functions, [f"run{place}" for place in range(len(snippets))])
    wrong = []
    for place, (body, line) in enumerate(zip(snippets, said.splitlines(), strict=True)):
        kind, _, expected = line.partition(" ")
        try:
            value = getattr(module, f"run{place}")()
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
        by_hand = float(expected) if kind == "f" else int(expected)
        if isinstance(value, str) or value != by_hand or isinstance(value, float) is not (kind == "f"):
            wrong.append(f"{body}\n    {line!r}, not {value!r}")
    assert not wrong, "\n".join(wrong)
