# One way to set up: the image runs the same scripts that a user runs.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /naspipe
COPY . .
RUN bash scripts/setup.sh
CMD ["./run_compare.sh"]
