variable "project" {
  description = "ID of the project."
  type        = string
}

variable "name" {
  description = "Name of the cluster, in the names of its machines."
  type        = string
}

variable "region" {
  description = "Region of Compute Engine."
  type        = string
  default     = "us-central1"
}

variable "zone" {
  description = "Zone of all machines."
  type        = string
  default     = "us-central1-a"
}

variable "image" {
  description = "Image with cloud-init, systemd and apt. Google's images of Debian have no cloud-init."
  type        = string
  default     = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
}

variable "machines" {
  description = "For each role, the number of machines, their type and, where the provider lets choose it, the size of their disks in GiB. `k1m plan` says what a role needs."
  type = map(object({
    count = number
    type  = string
    disk  = optional(number, 20)
  }))
  validation {
    condition     = length(setsubtract(keys(var.machines), ["stores", "apiservers", "schedulers", "gateways", "nodes"])) == 0
    error_message = "machines: the roles are stores, apiservers, schedulers, gateways and nodes."
  }
  validation {
    condition     = alltrue([for name, role in var.machines : role.count >= 0 && floor(role.count) == role.count && (name == "nodes" || role.count <= 30)])
    error_message = "machines: a role has 0 to 30 machines, and nodes any number for which the provider has addresses."
  }
}

variable "cidr" {
  description = "Addresses of the machines. Each role has 32 of them, from 32 on in the order stores, apiservers, schedulers, gateways; nodes have all from 192 on."
  type        = string
  default     = "10.0.0.0/24"
  validation {
    condition     = can(cidrhost(var.cidr, 224))
    error_message = "cidr: use a range of 256 addresses or more, such as 10.0.0.0/24."
  }
}

variable "client_cidrs" {
  description = "Addresses from which clients reach the API servers (port 6443)."
  type        = list(string)
  default     = []
}

variable "ssh_cidrs" {
  description = "Addresses from which machines are reached by SSH, to copy certificates."
  type        = list(string)
}

variable "ssh_public_key" {
  description = "Public key of the user that copies certificates."
  type        = string
}

variable "endpoint" {
  description = "HOST:PORT at which clients reach the API servers, such as that of a load balancer. Empty: the first gateway, or else the first API server."
  type        = string
  default     = ""
}

variable "server_names" {
  description = "Further names and addresses in the certificates of the API servers and gateways."
  type        = list(string)
  default     = []
}

variable "replication_log" {
  description = "Where the store keeps its log: fsync, buffered or memory."
  type        = string
  default     = "fsync"
}

variable "downloads" {
  description = "URL and SHA-256 sum of what machines install: see the module cluster."
  type        = map(object({ url = string, sha256 = string }))
}

variable "kubernetes_dir" {
  description = "Folder on the machine of the operator in which kubeadm makes certificates and kubeconfigs, as an absolute path."
  type        = string
}
