# What llmops' token may do. nomad acl policy apply -description llmops llmops llmops.policy.hcl

namespace "default" {
  capabilities = ["list-jobs", "parse-job", "read-job", "submit-job", "dispatch-job", "scale-job", "alloc-lifecycle", "read-logs", "read-fs"]

  variables {
    path "llmops/*" {
      capabilities = ["list", "read", "write", "destroy"]
    }
  }
}

node_pool "*" {
  capabilities = ["read"]
}

node {
  policy = "write"
}

agent {
  policy = "read"
}
