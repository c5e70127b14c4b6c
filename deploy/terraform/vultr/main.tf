locals {
  roles = ["stores", "apiservers", "schedulers", "gateways", "nodes"]
  all = merge([
    for role in local.roles : {
      for i in range(try(var.machines[role].count, 0)) : "${var.name}-${trimsuffix(role, "s")}-${i}" => { role = role }
    }
  ]...)
  # Machines know each other by their user data. The addresses of a VPC are known only when its machines are there, so they
  # have reserved public ones, and the firewall lets only them through.
  machines = {
    for role in local.roles : role => {
      for name, machine in local.all : name => { address = vultr_reserved_ip.this[name].subnet } if machine.role == role
    }
  }
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

data "vultr_os" "this" {
  filter {
    name   = "name"
    values = [var.image]
  }
}

resource "vultr_ssh_key" "this" {
  name    = var.name
  ssh_key = var.ssh_public_key
}

resource "vultr_instance" "this" {
  for_each          = local.all
  label             = each.key
  hostname          = each.key
  region            = var.region
  plan              = var.machines[each.value.role].type
  os_id             = data.vultr_os.this.id
  reserved_ip_id    = vultr_reserved_ip.this[each.key].id
  firewall_group_id = vultr_firewall_group.this.id
  ssh_key_ids       = [vultr_ssh_key.this.id]
  user_data         = module.cluster.user_data[each.key]
  backups           = "disabled"
  tags              = [var.name, each.value.role]

  lifecycle {
    # A store must not lose its disk because a newer image or another package is there. Machines are replaced one by one,
    # with -replace.
    ignore_changes = [os_id, user_data]
  }
}
