locals {
  roles = ["stores", "apiservers", "schedulers", "gateways", "nodes"]
  # Addresses are chosen here and not by the provider, because machines know each other by their user data.
  machines = {
    for number, role in local.roles : role => {
      for i in range(try(var.machines[role].count, 0)) : "${var.name}-${trimsuffix(role, "s")}-${i}" => {
        role    = role
        address = cidrhost(var.cidr, (role == "nodes" ? 192 : 32 * (number + 1)) + i)
      }
    }
  }
  all = merge(values(local.machines)...)
}

module "cluster" {
  source          = "../cluster"
  name            = var.name
  machines        = { for role, machines in local.machines : role => { for name, machine in machines : name => machine.address } }
  endpoint        = var.endpoint
  server_names    = var.server_names
  replication_log = var.replication_log
  downloads       = var.downloads
  kubernetes_dir  = var.kubernetes_dir
}

resource "google_compute_instance" "this" {
  for_each     = local.all
  name         = each.key
  zone         = var.zone
  machine_type = var.machines[each.value.role].type
  tags         = [var.name]
  labels       = { cluster = var.name, role = each.value.role }
  metadata = {
    user-data              = module.cluster.user_data[each.key]
    ssh-keys               = "root:${var.ssh_public_key}"
    block-project-ssh-keys = "true"
  }

  boot_disk {
    initialize_params {
      image = var.image
      size  = var.machines[each.value.role].disk
      type  = "hyperdisk-balanced"
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.this.id
    network_ip = each.value.address
    access_config {} # a public address, to install programs, and for SSH
  }
  shielded_instance_config {
    enable_secure_boot = true
  }
  lifecycle {
    # A store must not lose its disk because a newer image is there. Machines are replaced one by one, with -replace.
    ignore_changes = [boot_disk[0].initialize_params, metadata["user-data"]]
  }
}
