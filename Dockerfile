# syntax=docker/dockerfile:1
# One image for every process of the service; `gpu` adds the CUDA compiler for hosts with a GPU.

FROM python:3.12-slim-bookworm AS service
# gcc links what is built for a CPU; libgomp is the thread pool that kernels and torch share.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 tilewright
WORKDIR /opt/tilewright
COPY requirements/lock.txt requirements/lock.txt
RUN pip install --no-cache-dir --disable-pip-version-check -r requirements/lock.txt
COPY . .
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation -e . \
    && mkdir -p /var/lib/tilewright && chown tilewright:tilewright /var/lib/tilewright
ENV TILEWRIGHT_DATA=/var/lib/tilewright \
    TILEWRIGHT_CACHE=/var/lib/tilewright/cache \
    RAY_USAGE_STATS_ENABLED=0 \
    PYTHONUNBUFFERED=1
USER tilewright
EXPOSE 8400

FROM service AS gpu
USER root
COPY requirements/gpu.txt requirements/gpu.txt
# NVML and the driver come with the nvidia runtime; the compiler comes from the lock.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir --disable-pip-version-check -r requirements/gpu.txt
USER tilewright
