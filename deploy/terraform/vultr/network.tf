resource "vultr_reserved_ip" "this" {
  for_each = local.all
  region   = var.region
  ip_type  = "v4"
  label    = each.key
}

resource "vultr_firewall_group" "this" {
  description = var.name
}

resource "vultr_firewall_rule" "members" {
  for_each          = vultr_reserved_ip.this
  firewall_group_id = vultr_firewall_group.this.id
  protocol          = "tcp"
  ip_type           = "v4"
  subnet            = each.value.subnet
  subnet_size       = 32
  port              = "1:65535"
  notes             = each.key
}

resource "vultr_firewall_rule" "clients" {
  for_each          = toset(var.client_cidrs)
  firewall_group_id = vultr_firewall_group.this.id
  protocol          = "tcp"
  ip_type           = "v4"
  subnet            = split("/", each.value)[0]
  subnet_size       = tonumber(split("/", each.value)[1])
  port              = "6443"
  notes             = "clients of the API servers"
}

resource "vultr_firewall_rule" "ssh" {
  for_each          = toset(var.ssh_cidrs)
  firewall_group_id = vultr_firewall_group.this.id
  protocol          = "tcp"
  ip_type           = "v4"
  subnet            = split("/", each.value)[0]
  subnet_size       = tonumber(split("/", each.value)[1])
  port              = "22"
  notes             = "SSH"
}
