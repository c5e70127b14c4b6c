# User data of all machines of a cluster, and what their certificates must be valid for. It needs no provider.
locals {
  templates = "${path.module}/../../cloud-init"
  entrances = length(var.machines.gateways) > 0 ? var.machines.gateways : var.machines.apiservers
  endpoint  = var.endpoint != "" ? var.endpoint : "${values(local.entrances)[0]}:6443"

  shared = {
    cluster         = var.name
    endpoint        = local.endpoint
    members         = var.machines.stores
    apiservers      = var.machines.apiservers
    downloads       = var.downloads
    replication_log = var.replication_log
    service_cidr    = var.service_cidr
    install         = filebase64("${local.templates}/install.sh")
    hardening       = trimspace(file("${local.templates}/hardening.conf"))
    kubelet = yamlencode(merge({
      apiVersion               = "kubelet.config.k8s.io/v1beta1"
      kind                     = "KubeletConfiguration"
      authentication           = { x509 = { clientCAFile = "/etc/kubernetes/pki/ca.crt" } }
      cgroupDriver             = "systemd"
      containerRuntimeEndpoint = "unix:///run/containerd/containerd.sock"
      failSwapOn               = false
      rotateCertificates       = true
      staticPodPath            = "/etc/kubernetes/manifests"
    }, var.kubelet))
  }
  templates_of = {
    stores     = "store"
    apiservers = "apiserver"
    schedulers = "scheduler"
    gateways   = "gateway"
    nodes      = "node"
  }
  all = merge([
    for role, machines in var.machines : {
      for name, address in machines : name => { role = role, address = address }
    }
  ]...)

  # Certificates and kubeconfigs that a machine needs, from where kubeadm writes them (below /etc/kubernetes).
  files_of = {
    stores = {
      group = "mem_etcd"
      files = {
        "/etc/mem_etcd/ca.crt"     = "pki/etcd/ca.crt"
        "/etc/mem_etcd/server.crt" = "pki/etcd/server.crt"
        "/etc/mem_etcd/server.key" = "pki/etcd/server.key"
        "/etc/mem_etcd/peer.crt"   = "pki/etcd/peer.crt"
        "/etc/mem_etcd/peer.key"   = "pki/etcd/peer.key"
      }
    }
    apiservers = {
      group = "kubernetes"
      files = merge(
        { "/etc/kubernetes/controller-manager.conf" = "controller-manager.conf" },
        {
          for file in [
            "apiserver.crt", "apiserver.key", "apiserver-etcd-client.crt", "apiserver-etcd-client.key",
            "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key", "ca.crt", "ca.key", "etcd/ca.crt",
            "front-proxy-ca.crt", "front-proxy-client.crt", "front-proxy-client.key", "sa.key", "sa.pub",
          ] : "/etc/kubernetes/pki/${file}" => "pki/${file}"
        }
      )
    }
    schedulers = {
      group = "dist-scheduler"
      files = { "/etc/dist-scheduler/kubeconfig" = "scheduler.conf" }
    }
    gateways = {
      group = "kube-gateway"
      files = {
        "/etc/kube-gateway/ca.crt"                 = "pki/ca.crt"
        "/etc/kube-gateway/server.crt"             = "pki/apiserver.crt"
        "/etc/kube-gateway/server.key"             = "pki/apiserver.key"
        "/etc/kube-gateway/front-proxy-client.crt" = "pki/front-proxy-client.crt"
        "/etc/kube-gateway/front-proxy-client.key" = "pki/front-proxy-client.key"
      }
    }
    nodes = {
      group = "root"
      files = {
        "/etc/kubernetes/pki/ca.crt"             = "pki/ca.crt"
        "/etc/kubernetes/bootstrap-kubelet.conf" = "bootstrap-kubelet.conf"
      }
    }
  }
}
