variable "name" {
  description = "Name of the cluster, in the names of its machines."
  type        = string
  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}[a-z0-9]$", var.name))
    error_message = "name: use 2 to 32 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "machines" {
  description = "Names of the machines of each role, with the addresses at which the others reach them."
  type = object({
    stores     = map(string)
    apiservers = map(string)
    schedulers = optional(map(string), {})
    gateways   = optional(map(string), {})
    nodes      = optional(map(string), {})
  })
  validation {
    condition     = contains([1, 3, 5], length(var.machines.stores))
    error_message = "machines.stores: a store has 1, 3 or 5 members."
  }
  validation {
    condition     = length(var.machines.apiservers) > 0
    error_message = "machines.apiservers: name at least one."
  }
  validation {
    condition     = length(distinct(flatten([for role in values(var.machines) : keys(role)]))) == sum([for role in values(var.machines) : length(role)])
    error_message = "machines: each name must be unique."
  }
}

variable "endpoint" {
  description = "HOST:PORT at which clients reach the API servers, such as that of a load balancer. Empty: the first gateway, or else the first API server."
  type        = string
  default     = ""
  validation {
    condition     = var.endpoint == "" || can(regex("^.+:[0-9]+$", var.endpoint))
    error_message = "endpoint: use HOST:PORT."
  }
}

variable "server_names" {
  description = "Further names and addresses in the certificates of the API servers and gateways, such as their public ones."
  type        = list(string)
  default     = []
}

variable "replication_log" {
  description = "Where the store keeps its log: fsync (survives a crash of the machines), buffered (of the processes) or memory."
  type        = string
  default     = "fsync"
  validation {
    condition     = contains(["fsync", "buffered", "memory"], var.replication_log)
    error_message = "replication_log: choose fsync, buffered or memory."
  }
}

variable "service_cidr" {
  description = "Addresses of Services."
  type        = string
  default     = "10.96.0.0/12"
}

variable "kubernetes_version" {
  description = "Version of Kubernetes, in the configuration of kubeadm."
  type        = string
  default     = "v1.37.1"
}

variable "kubernetes_dir" {
  description = "Folder on the machine of the operator in which kubeadm makes certificates and kubeconfigs, as an absolute path."
  type        = string
  default     = "/etc/kubernetes"
  validation {
    condition     = startswith(var.kubernetes_dir, "/")
    error_message = "kubernetes_dir: use an absolute path."
  }
}

variable "kubelet" {
  description = "Further fields of the KubeletConfiguration of nodes."
  type        = any
  default     = {}
}

variable "downloads" {
  description = "URL and SHA-256 sum of what machines install: Debian packages (mem_etcd, dist-scheduler, kube-gateway) and programs (kube-apiserver, kube-controller-manager, kubelet). Only those of the roles in use are needed."
  type        = map(object({ url = string, sha256 = string }))
  validation {
    condition     = alltrue([for d in values(var.downloads) : can(regex("^[0-9a-f]{64}$", d.sha256)) && can(regex("^https?://[^\"\\\\ ]+$", d.url))])
    error_message = "downloads: each needs an http or https URL, and a SHA-256 sum of 64 hexadecimal digits."
  }
  validation {
    condition = alltrue(flatten([
      [for d in ["mem_etcd", "kube-apiserver", "kube-controller-manager"] : contains(keys(var.downloads), d)],
      length(var.machines.schedulers) == 0 || contains(keys(var.downloads), "dist-scheduler"),
      length(var.machines.gateways) == 0 || contains(keys(var.downloads), "kube-gateway"),
      length(var.machines.nodes) == 0 || contains(keys(var.downloads), "kubelet"),
    ]))
    error_message = "downloads: name mem_etcd, kube-apiserver and kube-controller-manager, and what the other roles in use need: dist-scheduler, kube-gateway, kubelet."
  }
}
