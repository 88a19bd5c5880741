# The command naspipe, for a user that is not root. Runs and data lie in /runs:
#
#   docker build -t naspipe .
#   mkdir -p runs && sudo chown 1000 runs        # the user of the image has to write there
#   docker run --rm --init --shm-size 2g -v "$PWD/runs:/runs" naspipe train cv.c3 --data digits --stages 2
#
# --shm-size: stages hand tensors over in /dev/shm, of which docker gives 64 MB; --set data_path=zmq does without.
# --init: processes that end are reaped. `docker stop --time 120` leaves a checkpoint where the 10 s of its own do not last.
#
# Build arguments:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu   torch's CPU build; what PyPI has is for CUDA and takes gigabytes
#   EXTRAS='[prometheus,redis]'                                further packages, as of pip install 'naspipe[...]'
#
# Several hosts: the same image with torchrun in place of naspipe, on the host's network, the runs on a shared file system:
#
#   docker run --rm --init --shm-size 2g --network host -v /shared:/shared --entrypoint torchrun naspipe \
#       --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 --rdzv-id one \
#       -m naspipe train cv.c3 --data digits --run-dir /shared/one --resume-if-exists

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
ARG PIP_EXTRA_INDEX_URL=""
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && python -m venv /opt/naspipe \
    && for wheel in /wheels/naspipe-*.whl; do \
        /opt/naspipe/bin/pip install --constraint constraints.txt "$wheel$EXTRAS"; \
    done

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
