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

data "aws_ami" "ubuntu" {
  most_recent = true
  owners      = ["099720109477"] # Canonical
  filter {
    name   = "name"
    values = ["ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-*"]
  }
}

resource "aws_key_pair" "this" {
  key_name   = var.name
  public_key = var.ssh_public_key
}

resource "aws_instance" "this" {
  for_each                    = local.all
  ami                         = var.image != "" ? var.image : data.aws_ami.ubuntu.id
  instance_type               = var.machines[each.value.role].type
  key_name                    = aws_key_pair.this.key_name
  subnet_id                   = aws_subnet.this.id
  private_ip                  = each.value.address
  associate_public_ip_address = true # to install programs, and for SSH
  vpc_security_group_ids      = [aws_security_group.this.id]
  user_data                   = module.cluster.user_data[each.key]
  tags                        = { Name = each.key, Cluster = var.name, Role = each.value.role }

  metadata_options {
    http_tokens = "required"
  }
  root_block_device {
    volume_size = var.machines[each.value.role].disk
    volume_type = "gp3"
    encrypted   = true
  }
  lifecycle {
    # A store must not lose its disk because a newer image or another package is there. Machines are replaced one by one,
    # with -replace.
    ignore_changes = [ami, user_data]
  }
}
