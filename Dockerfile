# The command naspipe, for a user that is not root. Runs and data lie in /runs:
#
#   docker build -t naspipe .
#   docker run --rm --shm-size 2g -v "$PWD/runs:/runs" naspipe train cv.c3 --data digits --stages 2
#
# With `--build-arg PIP_EXTRA_INDEX_URL=...` torch comes from an index of its CPU builds.

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/naspipe \
    && /opt/naspipe/bin/pip install --constraint constraints.txt /wheels/naspipe-*.whl

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libjemalloc2 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 naspipe \
    && install --directory --owner naspipe /runs
COPY --from=build /opt/naspipe /opt/naspipe
# Bits and speed are the same with the C library's allocator; memory is less and stays flat.
ENV LD_PRELOAD=libjemalloc.so.2 PATH=/opt/naspipe/bin:$PATH XDG_CACHE_HOME=/runs/.cache
USER 1000
WORKDIR /runs
ENTRYPOINT ["naspipe"]
CMD ["--help"]
