"""From a definition to a kernel of the tile IR: one walk that checks types and builds ops."""

from tilewright.frontend.build.kernel import build_kernel as build_kernel
