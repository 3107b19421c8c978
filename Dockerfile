# Two stages: a static binary, and nothing but it. Runs as a non-root user with a read-only root file system.
ARG RUST_VERSION=1.95
FROM rust:${RUST_VERSION}-slim AS build
ARG TARGETARCH
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# The toolchain file pins what developers use; the image's own toolchain is the same release.
COPY Cargo.toml Cargo.lock build.rs rustfmt.toml ./
COPY proto proto
COPY src src
COPY crates/core crates/core
COPY crates/model crates/model
# The simulator is no part of the image: an empty package keeps the workspace whole.
RUN mkdir -p crates/sim/src \
 && printf '[package]\nname = "sidewatch-sim"\nversion = "0.0.0"\nedition = "2024"\n' > crates/sim/Cargo.toml \
 && echo 'fn main() {}' > crates/sim/src/main.rs
RUN case "${TARGETARCH:-amd64}" in amd64) target=x86_64-unknown-linux-musl ;; arm64) target=aarch64-unknown-linux-musl ;; *) exit 1 ;; esac \
 && rustup target add "$target" \
 && cargo build --release --target "$target" \
 && install -D "target/$target/release/sidewatch" /out/sidewatch

FROM scratch
LABEL org.opencontainers.image.title="sidewatch" \
      org.opencontainers.image.description="The Kubernetes watch as a sidecar" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /out/sidewatch /sidewatch
USER 65532:65532
EXPOSE 9151
ENTRYPOINT ["/sidewatch"]
CMD ["run"]
