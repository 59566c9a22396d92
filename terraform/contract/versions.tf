terraform {
  # Validations that look at other variables came with 1.9. Providers are left to
  # the modules that call this one: it plans and tests without a download.
  required_version = ">= 1.9.0, < 2.0.0"
}
