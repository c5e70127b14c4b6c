output "user_data" {
  description = "User data of each machine, for cloud-init. It has no keys."
  value = {
    for name, machine in local.all : name => templatefile(
      "${local.templates}/${local.templates_of[machine.role]}.yaml.tftpl",
      merge(local.shared, { name = name, address = machine.address })
    )
  }
}

output "endpoint" {
  description = "HOST:PORT at which clients reach the API servers."
  value       = local.endpoint
}

output "kubeadm_config" {
  description = "Configuration with which `kubeadm init phase certs` and `kubeadm init phase kubeconfig` make all certificates of the cluster."
  value = join("---\n", [
    yamlencode({
      apiVersion           = "kubeadm.k8s.io/v1beta4"
      kind                 = "ClusterConfiguration"
      certificatesDir      = "${var.kubernetes_dir}/pki"
      clusterName          = var.name
      controlPlaneEndpoint = local.endpoint
      encryptionAlgorithm  = "ECDSA-P256"
      kubernetesVersion    = var.kubernetes_version
      networking           = { serviceSubnet = var.service_cidr }
      apiServer = {
        certSANs = distinct(concat(
          values(var.machines.apiservers), values(var.machines.gateways), var.server_names, ["127.0.0.1", "localhost"]
        ))
      }
      etcd = {
        local = {
          serverCertSANs = concat(values(var.machines.stores), ["127.0.0.1", "localhost"])
          peerCertSANs   = values(var.machines.stores)
        }
      }
    }),
    yamlencode({
      apiVersion       = "kubeadm.k8s.io/v1beta4"
      kind             = "InitConfiguration"
      localAPIEndpoint = { advertiseAddress = values(local.entrances)[0] }
    }),
  ])
}

output "files" {
  description = "Files with keys and certificates that each machine needs: lines of MACHINE PATH SOURCE GROUP. bundle.sh reads them."
  value = join("", flatten([
    for name, machine in local.all : [
      for path, source in local.files_of[machine.role].files :
      "${name} ${path} ${source} ${local.files_of[machine.role].group}\n"
    ]
  ]))
}

output "kubernetes_dir" {
  description = "Folder on the machine of the operator in which kubeadm makes certificates and kubeconfigs."
  value       = var.kubernetes_dir
}
