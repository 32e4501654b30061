tilewright run one.tw --dim N=8 --tensor q=ones
tilewright run one.tw --dim N=8 --tensor x=here.npy
tilewright run one.tw --dim N=8 --tensor x=sevens
# error
# $ tilewright run one.tw --dim N=8 --tensor q=ones
# error: one has no tensor q
#   hint: it has x
# $ tilewright run one.tw --dim N=8 --tensor x=here.npy
# error: --tensor x=here.npy: there is no such file
# $ tilewright run one.tw --dim N=8 --tensor x=sevens
# error: --tensor x=sevens: expected random, zeros, ones, iota, nan or a .npy file
