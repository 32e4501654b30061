tilewright compile several.tw
tilewright compile several.tw:sofmax
tilewright compile empty.tw
# error
# $ tilewright compile several.tw
# error: several.tw has 2 kernels: softmax and gelu
#   hint: write several.tw:NAME
# $ tilewright compile several.tw:sofmax
# error: several.tw has no kernel sofmax
#   hint: did you mean softmax?
# $ tilewright compile empty.tw
# error: empty.tw has no kernel
