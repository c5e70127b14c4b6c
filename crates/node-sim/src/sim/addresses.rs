//! IP addresses of pods.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: u32,
    size: u32,
}

/// The addresses of a network that are in use.
pub struct Addresses {
    network: Network,
    used: HashSet<u32>,
    next: u32,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let parts = text.split_once('/').and_then(|(address, bits)| {
            let address: Ipv4Addr = address.parse().ok()?;
            Some((u32::from(address), bits.parse::<u32>().ok().filter(|it| (1..=30).contains(it))?))
        });
        let (address, bits) = parts
            .ok_or_else(|| format!("{text:?} is not an IPv4 network, such as 10.64.0.0/10"))?;
        let size = 1 << (32 - bits);
        Ok(Network { first: address & !(size - 1), size })
    }
}

impl Addresses {
    /// All addresses are free.
    pub fn new(network: Network) -> Addresses {
        Addresses { network, used: HashSet::new(), next: 0 }
    }

    /// Takes an address: the next free one after the last that was taken, so that addresses are not
    /// reused at once. Returns `None` if all are in use.
    pub fn take(&mut self) -> Option<Ipv4Addr> {
        // The first and the last address of a network have other meanings.
        let count = self.network.size - 2;
        if self.used.len() as u32 >= count {
            return None;
        }
        loop {
            let address = self.network.first + 1 + self.next;
            self.next = (self.next + 1) % count;
            if self.used.insert(address) {
                return Some(address.into());
            }
        }
    }

    /// Notes that an address is in use.
    pub fn note(&mut self, address: Ipv4Addr) {
        let offset = u32::from(address).wrapping_sub(self.network.first);
        if (1..self.network.size - 1).contains(&offset) {
            self.used.insert(address.into());
        }
    }

    /// Gives an address back.
    pub fn give(&mut self, address: Ipv4Addr) {
        self.used.remove(&address.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_and_reused_late() {
        let mut addresses = Addresses::new("10.1.2.9/29".parse().unwrap());
        addresses.note("10.1.2.10".parse().unwrap());
        addresses.note("10.9.9.9".parse().unwrap());
        let all: Vec<_> =
            std::iter::from_fn(|| addresses.take()).map(|it| it.to_string()).collect();
        assert_eq!(all, ["10.1.2.9", "10.1.2.11", "10.1.2.12", "10.1.2.13", "10.1.2.14"]);
        addresses.give("10.1.2.12".parse().unwrap());
        assert_eq!(addresses.take().unwrap().to_string(), "10.1.2.12");
        assert_eq!(addresses.take(), None);
    }

    #[test]
    fn networks_have_an_address_and_bits() {
        for text in ["10.0.0.0", "10.0.0.0/31", "10.0.0.0/0", "::1/64", "x/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
