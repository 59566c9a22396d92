terraform {
  # terraform_data and its provisioners are built in: nothing is downloaded.
  required_version = ">= 1.9.0, < 2.0.0"
}
