resource "google_compute_network" "this" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "this" {
  name          = var.name
  region        = var.region
  network       = google_compute_network.this.id
  ip_cidr_range = var.cidr
}

resource "google_compute_firewall" "members" {
  name        = "${var.name}-members"
  network     = google_compute_network.this.id
  description = "machines of the cluster"
  source_tags = [var.name]
  target_tags = [var.name]
  allow {
    protocol = "all"
  }
}

resource "google_compute_firewall" "clients" {
  count         = length(var.client_cidrs) > 0 ? 1 : 0
  name          = "${var.name}-clients"
  network       = google_compute_network.this.id
  description   = "clients of the API servers"
  source_ranges = var.client_cidrs
  target_tags   = [var.name]
  allow {
    protocol = "tcp"
    ports    = ["6443"]
  }
}

resource "google_compute_firewall" "ssh" {
  name          = "${var.name}-ssh"
  network       = google_compute_network.this.id
  description   = "SSH"
  source_ranges = var.ssh_cidrs
  target_tags   = [var.name]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}
