output "endpoint" {
  description = "HOST:PORT at which clients reach the API servers."
  value       = module.cluster.endpoint
}

output "kubeadm_config" {
  description = "Configuration for kubeadm, which makes the certificates."
  value       = module.cluster.kubeadm_config
}

output "files" {
  description = "Files with keys and certificates that each machine needs, for bundle.sh."
  value       = module.cluster.files
}

output "addresses" {
  description = "Address of each machine for SSH: lines of MACHINE ADDRESS."
  value       = join("", [for name, machine in google_compute_instance.this : "${name} ${machine.network_interface[0].access_config[0].nat_ip}\n"])
}

output "kubernetes_dir" {
  description = "Folder on the machine of the operator in which kubeadm makes certificates and kubeconfigs."
  value       = var.kubernetes_dir
}
