# What the router's workload identity may do: read what is live, and where.
#   nomad acl policy apply -namespace default -job router llmops-router router.policy.hcl

namespace "default" {
  capabilities = ["list-jobs", "read-job"]

  variables {
    path "llmops/*" {
      capabilities = ["list", "read"]
    }
  }
}
