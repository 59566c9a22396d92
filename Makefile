GO ?= go
RACE := $(shell command -v cc >/dev/null 2>&1 && echo -race)

FREIGHT := evals/freight evals/json evals/long-context evals/perplexity evals/canaries evals/retrieval traffic searches

.PHONY: demo build test faults bench generate help

demo: build ## onboard the example model, from its source to live traffic
	./llmops onboard examples/freight/model.yaml

build: ## build ./llmops
	$(GO) build -o llmops ./cmd/llmops

test: ## format, vet, staticcheck, tidy, and every test
ifeq ($(RACE),)
	@echo "no C compiler: tests run without the race detector"
endif
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not gofmt-ed: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags faults ./cmd/llmops
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff
	$(GO) test $(RACE) -timeout 14m ./...

faults: ## kill, stop and interrupt everything a run rests on, before and after every intent
	$(GO) test -v -count=1 -timeout 100m -tags faults -run '^TestFaults' ./cmd/llmops

bench: ## run every benchmark
	$(GO) test -run '^$$' -bench . -benchmem ./...

generate: ## write the example's items and traffic anew
	@for f in $(FREIGHT); do $(GO) run ./examples/freight/items/cmd/freightgen $$(basename $$f) > examples/freight/$$f.jsonl; done

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "%-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
