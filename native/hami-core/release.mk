# `make release` gives build/release/x86_64/libvgpu.so and build/release/aarch64/libvgpu.so, the files that are shipped: one per
# machine for every C library, built against glibc 2.17 by zig (`ziglang` on PyPI). `./dev run make -C native/hami-core release`
# has it.
ZIG ?= python3 -m ziglang
RELEASE := $(BUILD)/release
RELEASE_GLIBC := 2.17
RELEASE_MACHINES := x86_64 aarch64

release: $(RELEASE_MACHINES:%=$(RELEASE)/%/libvgpu.so)

# A make of its own per machine, which knows what has changed. Without the compiler's library: memcpy is libc's, and what is linked in
# carries the mark for shadow stacks. Nothing is left out: the loader's name, which makes a program of it, is not referred to.
$(RELEASE)/%/libvgpu.so: release-compiler
	@$(MAKE) -s --no-print-directory CC='$(ZIG) cc -target $*-linux-gnu.$(RELEASE_GLIBC)' ARCH=$* CFLAGS='-O2 -g0' LDFLAGS='-rtlib=none -Wl,--no-gc-sections' \
		BUILD=$(abspath $(BUILD))/release-objects/$*
	@mkdir -p $(@D)
	@cmp -s $(BUILD)/release-objects/$*/libvgpu.so $@ || install -m 0755 $(BUILD)/release-objects/$*/libvgpu.so $@

release-compiler:
	@$(ZIG) version >/dev/null || { echo 'zig is missing: run this as ./dev run make -C native/hami-core release' >&2; exit 1; }

.PHONY: release release-compiler
