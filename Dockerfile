# `qbert serve` in a container of one static binary:
#
#   docker build -t qbert .
#   docker run -p 8080:8080 -v "$PWD/models:/models:ro" qbert /models/model.qbert
#
# docs/guide/serve.md has more. The image of Rust for Alpine builds for musl, so the binary needs no library.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache build-base
WORKDIR /source
COPY . .
RUN cargo build --locked --release -p qbert-cli

FROM scratch
COPY --from=build /source/target/release/qbert /qbert
USER 65532:65532
ENV QBERT_HOST=0.0.0.0 QBERT_PORT=8080 QBERT_LOG=json
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=6s --start-period=5s CMD ["/qbert", "serve", "--health"]
ENTRYPOINT ["/qbert", "serve"]
