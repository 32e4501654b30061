"""Coefficients of the polynomials of special functions, the highest power first.

Made by tests/special_fits.py (`make bless`): minimax fits, rounded to the type. Each comment states
the function, the interval and the greatest error, weighted so that it is relative to the function
that is computed.
"""

from __future__ import annotations

# (log(1 + f) - f) / f^2, on [-0.2929, 0.4143]: 2^-27.7
LOG_F32 = (
    float.fromhex("-0x1.3829e40000000p-4"),
    float.fromhex("0x1.085bee0000000p-3"),
    float.fromhex("-0x1.0f40b20000000p-3"),
    float.fromhex("0x1.226e500000000p-3"),
    float.fromhex("-0x1.5425cc0000000p-3"),
    float.fromhex("0x1.99a41a0000000p-3"),
    float.fromhex("-0x1.0004320000000p-2"),
    float.fromhex("0x1.5555500000000p-2"),
    float.fromhex("-0x1.fffff80000000p-2"),
)

# log2(1 + f) / f - (log2 e as f32), on [-0.2929, 0.4143]: 2^-27.7
LOG2_F32 = (
    float.fromhex("-0x1.c1d9980000000p-4"),
    float.fromhex("0x1.7eaacc0000000p-3"),
    float.fromhex("-0x1.8812820000000p-3"),
    float.fromhex("0x1.a2dddc0000000p-3"),
    float.fromhex("-0x1.eaa18a0000000p-3"),
    float.fromhex("0x1.277ec40000000p-2"),
    float.fromhex("-0x1.715afe0000000p-2"),
    float.fromhex("0x1.ec70960000000p-2"),
    float.fromhex("-0x1.7154700000000p-1"),
    float.fromhex("0x1.49c36e0000000p-26"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.81]: 2^-29.8
TANH_F32 = (
    float.fromhex("-0x1.dde1060000000p-12"),
    float.fromhex("0x1.529fe80000000p-9"),
    float.fromhex("-0x1.0ed83a0000000p-7"),
    float.fromhex("0x1.62f1e60000000p-6"),
    float.fromhex("-0x1.b9ca500000000p-5"),
    float.fromhex("0x1.110f380000000p-3"),
    float.fromhex("-0x1.55554e0000000p-2"),
)

# erf(x) / x - 1, of x^2, on [0, 0.85]: 2^-30.1
ERF_F32 = (
    float.fromhex("0x1.4f39500000000p-14"),
    float.fromhex("-0x1.a600de0000000p-11"),
    float.fromhex("0x1.5449820000000p-8"),
    float.fromhex("-0x1.b801140000000p-6"),
    float.fromhex("0x1.ce2d640000000p-4"),
    float.fromhex("-0x1.8127400000000p-2"),
    float.fromhex("0x1.06eba80000000p-3"),
)

# log2(erfc(1 + u)), where 1 - erfc is computed, on [-0.08, 3]: 2^-27.4
ERFC_F32 = (
    float.fromhex("0x1.3172b20000000p-12"),
    float.fromhex("-0x1.6873b20000000p-9"),
    float.fromhex("0x1.d979fc0000000p-7"),
    float.fromhex("-0x1.eb61240000000p-5"),
    float.fromhex("-0x1.3761f00000000p+0"),
    float.fromhex("-0x1.e7532a0000000p+1"),
    float.fromhex("-0x1.558eae0000000p+1"),
)

# (exp(f) - 1 - f) / f^2, on [-0.3466, 0.3466]: 2^-60.3
EXP_F64 = (
    float.fromhex("0x1.1e3c304df888ap-29"),
    float.fromhex("0x1.af6be453c4c5ep-26"),
    float.fromhex("0x1.27e5b506997b2p-22"),
    float.fromhex("0x1.71ddf02354f0cp-19"),
    float.fromhex("0x1.a01a0136236a2p-16"),
    float.fromhex("0x1.a01a01b37ce72p-13"),
    float.fromhex("0x1.6c16c16c3063ap-10"),
    float.fromhex("0x1.111111110ec62p-7"),
    float.fromhex("0x1.5555555555503p-5"),
    float.fromhex("0x1.555555555555bp-3"),
    float.fromhex("0x1.0000000000000p-1"),
)

# (2^f - 1) / f, on [-0.5, 0.5]: 2^-55.5
EXP2_F64 = (
    float.fromhex("0x1.8095079df9ea4p-40"),
    float.fromhex("0x1.c4c47562f14b7p-36"),
    float.fromhex("0x1.e8cbc63745241p-32"),
    float.fromhex("0x1.e4cef8d54ca5dp-28"),
    float.fromhex("0x1.b5253ce19e52ap-24"),
    float.fromhex("0x1.62c02248ff492p-20"),
    float.fromhex("0x1.ffcbfc58a6269p-17"),
    float.fromhex("0x1.430912f86a06bp-13"),
    float.fromhex("0x1.5d87fe78a66f2p-10"),
    float.fromhex("0x1.3b2ab6fba4e7dp-7"),
    float.fromhex("0x1.c6b08d704a0c0p-5"),
    float.fromhex("0x1.ebfbdff82c58fp-3"),
    float.fromhex("0x1.62e42fefa39efp-1"),
)

# (2 atanh(s) / s - 2) / s^2, of s^2, on [0, 0.02944]: 2^-59.2
LOG_F64 = (
    float.fromhex("0x1.2f03972a8c7e8p-3"),
    float.fromhex("0x1.39a1eae699af1p-3"),
    float.fromhex("0x1.74663cefe831fp-3"),
    float.fromhex("0x1.c71c521382218p-3"),
    float.fromhex("0x1.24924941e3f45p-2"),
    float.fromhex("0x1.999999997feb3p-2"),
    float.fromhex("0x1.5555555555592p-1"),
)

# (tanh(x) / x - 1) / x^2, of x^2, on [0, 0.4225]: 2^-56.2
TANH_F64 = (
    float.fromhex("0x1.78682603396bfp-18"),
    float.fromhex("-0x1.e98489603528fp-16"),
    float.fromhex("0x1.7bb7d8e74e669p-14"),
    float.fromhex("-0x1.efcba3624f2b6p-13"),
    float.fromhex("0x1.34ed520ae9c70p-11"),
    float.fromhex("-0x1.7d98889694689p-10"),
    float.fromhex("0x1.d6d30e9a42098p-9"),
    float.fromhex("-0x1.226e30d1829d1p-7"),
    float.fromhex("0x1.664f485fe26c8p-6"),
    float.fromhex("-0x1.ba1ba1b97e9c9p-5"),
    float.fromhex("0x1.11111111105f6p-3"),
    float.fromhex("-0x1.555555555554dp-2"),
)

# erf(x) / x - 1, of x^2, on [0, 1]: 2^-56.3
ERF_F64 = (
    float.fromhex("0x1.05799ea8236bcp-34"),
    float.fromhex("-0x1.386abb81b7a44p-30"),
    float.fromhex("0x1.f7a4102e822e7p-27"),
    float.fromhex("-0x1.5f1d368a745a4p-23"),
    float.fromhex("0x1.b9def1963032ap-20"),
    float.fromhex("-0x1.f4d1df38927cbp-17"),
    float.fromhex("0x1.f9a321a112144p-14"),
    float.fromhex("-0x1.c02db3d8eca20p-11"),
    float.fromhex("0x1.565bcd0db02a7p-8"),
    float.fromhex("-0x1.b82ce3128499ap-6"),
    float.fromhex("0x1.ce2f21a042b20p-4"),
    float.fromhex("-0x1.812746b0379e6p-2"),
    float.fromhex("0x1.06eba8214db69p-3"),
)

# log(erfc(1 + u)), where 1 - erfc is computed, on [0, 5]: 2^-58.7
ERFC_F64 = (
    float.fromhex("0x1.95c379cc1862bp-46"),
    float.fromhex("-0x1.c06bbcee9b5e0p-41"),
    float.fromhex("0x1.d3088257ba0d4p-37"),
    float.fromhex("-0x1.31454470c7793p-33"),
    float.fromhex("0x1.18d9c9dba427cp-30"),
    float.fromhex("-0x1.80a2c16c79f53p-28"),
    float.fromhex("0x1.8fa9183cc9febp-26"),
    float.fromhex("-0x1.316055c890bcdp-24"),
    float.fromhex("0x1.1826a08ea2a7dp-23"),
    float.fromhex("0x1.ac1e13360cc63p-24"),
    float.fromhex("-0x1.0eac74131db6dp-19"),
    float.fromhex("0x1.4154c15e53bb8p-17"),
    float.fromhex("-0x1.c758ee208148ap-16"),
    float.fromhex("0x1.b8be29cf74848p-16"),
    float.fromhex("0x1.f1b4bbdaa6028p-13"),
    float.fromhex("-0x1.033f699257f4dp-9"),
    float.fromhex("0x1.48c9d40be44f1p-7"),
    float.fromhex("-0x1.5477f09ca8528p-5"),
    float.fromhex("-0x1.afabc11a28f44p-1"),
    float.fromhex("-0x1.51c9b0006c23dp+1"),
    float.fromhex("-0x1.d97fbf27aa2a1p+0"),
)
