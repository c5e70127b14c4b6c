//! The set of API servers, and the choice among them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwap;

use super::refusals::Standing;
use super::server::Server;

/// What a share of 1 of answers 429 adds to a load whose mean is about 4. It halves the clients of a
/// server that refuses two thirds of its requests, and never all, because a single client that sends
/// too much can be the reason.
const REFUSED_WEIGHT: f64 = 4.0;

/// All API servers.
pub struct Pool {
    servers: ArcSwap<Vec<Arc<Server>>>,
}

impl Pool {
    /// Creates a pool of these addresses.
    pub fn new(addresses: &[String]) -> Pool {
        let pool = Pool { servers: ArcSwap::default() };
        pool.update(addresses);
        pool
    }

    /// Replaces the set of API servers. Those that stay keep their state. Returns the new ones.
    pub fn update(&self, addresses: &[String]) -> Vec<Arc<Server>> {
        let current = self.servers.load();
        let mut added = Vec::new();
        let mut servers = Vec::with_capacity(addresses.len());
        for address in addresses {
            let known = current.iter().find(|server| server.address == *address);
            servers.push(known.cloned().unwrap_or_else(|| {
                let server = Arc::new(Server::new(address.clone()));
                added.push(server.clone());
                server
            }));
        }
        self.servers.store(Arc::new(servers));
        added
    }

    /// All API servers.
    pub fn servers(&self) -> Arc<Vec<Arc<Server>>> {
        self.servers.load_full()
    }

    /// Whether this server still belongs to the pool.
    pub fn contains(&self, server: &Arc<Server>) -> bool {
        self.servers.load().iter().any(|other| Arc::ptr_eq(other, server))
    }

    /// Chooses the less loaded one of two random servers that are ready and not in `failed`. If none
    /// is ready, any that is not in `failed` is tried: the probe may be wrong. A server that refused
    /// its clients gets some to try it, and then, unless all did so, none until they were served.
    pub fn choose(&self, failed: &[Arc<Server>]) -> Option<Arc<Server>> {
        let servers = self.servers.load();
        let untried: Vec<_> = servers
            .iter()
            .filter(|server| !failed.iter().any(|other| Arc::ptr_eq(other, server)))
            .collect();
        let ready = those(&untried, |server| server.is_ready());
        let candidates = if ready.is_empty() { untried } else { ready };
        if let Some(server) = candidates.iter().find(|server| server.take_trial_place()) {
            return Some(Arc::clone(server));
        }
        let open = those(&candidates, |server| server.standing() == Standing::Open);
        let candidates = if open.is_empty() { candidates } else { open };
        let (first, second) = two_of(candidates.len())?;
        let means = Means::of(&servers);
        let (first, second) = (candidates[first], candidates[second]);
        let better = if means.load(first) <= means.load(second) { first } else { second };
        Some(better.clone())
    }
}

/// Returns those servers for which a condition holds.
fn those<'a>(
    servers: &[&'a Arc<Server>],
    condition: impl Fn(&Server) -> bool,
) -> Vec<&'a Arc<Server>> {
    servers.iter().copied().filter(|server| condition(server)).collect()
}

/// Returns the loads of these servers by which a client's connection chooses among them. Their mean is
/// about the number of measures.
pub fn loads(servers: &[Arc<Server>]) -> Vec<f64> {
    let means = Means::of(servers);
    servers.iter().map(|server| means.load(server)).collect()
}

/// Two random indices below `count`, different if there are two.
fn two_of(count: usize) -> Option<(usize, usize)> {
    if count == 0 {
        return None;
    }
    let first = rand::random_range(0..count);
    if count == 1 {
        return Some((first, first));
    }
    let second = rand::random_range(0..count - 1);
    Some((first, second + usize::from(second >= first)))
}

/// Means over all servers, by which loads of different units are compared.
struct Means {
    connections: f64,
    requests: f64,
    watches: f64,
    cores: f64,
}

impl Means {
    fn of(servers: &[Arc<Server>]) -> Means {
        let mean = |value: fn(&Server) -> f64| {
            let sum: f64 = servers.iter().map(|server| value(server)).sum();
            sum / servers.len().max(1) as f64
        };
        Means {
            connections: mean(|server| server.connections() as f64),
            requests: mean(|server| server.requests.load(Relaxed) as f64),
            watches: mean(|server| server.watches.load(Relaxed) as f64),
            cores: mean(Server::cores),
        }
    }

    /// The load of a server in units of the mean. Each measure is bounded from below, so that a
    /// difference of a few requests on idle servers does not outweigh all others.
    fn load(&self, server: &Server) -> f64 {
        let share = |value: f64, mean: f64, unit: f64| value / mean.max(unit);
        share(server.connections() as f64, self.connections, 1.0)
            + share(server.requests.load(Relaxed) as f64, self.requests, 10.0)
            + share(server.watches.load(Relaxed) as f64, self.watches, 10.0)
            + share(server.cores(), self.cores, 0.5)
            + REFUSED_WEIGHT * server.refused_share()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio_util::sync::CancellationToken;

    use super::super::server::Place;
    use super::*;

    fn pool(count: usize) -> Pool {
        let addresses: Vec<_> = (0..count).map(|n| format!("127.0.0.1:{}", 6443 + n)).collect();
        let pool = Pool::new(&addresses);
        pool.servers().iter().for_each(|server| assert!(server.set_ready(true)));
        pool
    }

    #[test]
    fn the_choice_of_two_is_even() {
        let pool = pool(3);
        let place = |_| Place::new(pool.choose(&[]).unwrap(), CancellationToken::new());
        let _places: Vec<Place> = (0..300).map(place).collect();
        for server in pool.servers().iter() {
            let connections = server.connections();
            assert!((95..=105).contains(&connections), "{connections} of 300");
        }
    }

    #[test]
    fn unready_and_failed_servers_are_the_last_choice() {
        let pool = pool(2);
        let servers = pool.servers();
        servers[0].set_ready(false);
        assert!((0..20).all(|_| Arc::ptr_eq(&pool.choose(&[]).unwrap(), &servers[1])));
        let failed = [servers[1].clone()];
        assert!(Arc::ptr_eq(&pool.choose(&failed).unwrap(), &servers[0]));
        assert!(pool.choose(&servers).is_none());
    }

    /// Lets a server answer 429 in a row.
    fn refuse(server: &Server, now: Instant) {
        for second in 0..2 {
            (0..10).for_each(|_| server.answered(true));
            server.judge_answers(now + Duration::from_secs(second), 10);
        }
        assert_eq!(server.standing(), Standing::BackOff);
    }

    #[test]
    fn a_server_that_refused_its_clients_gets_some_after_a_while() {
        let pool = pool(3);
        let servers = pool.servers();
        let now = Instant::now();
        refuse(&servers[0], now);
        let chosen = |count: usize| -> usize {
            let choose = |_| pool.choose(&[]).unwrap();
            (0..count).map(choose).filter(|server| Arc::ptr_eq(server, &servers[0])).count()
        };
        assert_eq!(chosen(100), 0);
        servers[0].judge_answers(now + Duration::from_secs(20), 10);
        assert_eq!(chosen(100), 3);
        // Where all refuse, the load decides again.
        refuse(&servers[1], now);
        refuse(&servers[2], now);
        assert!(chosen(300) > 0);
    }

    #[test]
    fn servers_that_refuse_some_requests_get_fewer_clients() {
        let pool = pool(2);
        let servers = pool.servers();
        (0..200).for_each(|n| servers[0].answered(n % 5 == 0));
        servers[0].judge_answers(Instant::now(), 1000);
        let place = |_| Place::new(pool.choose(&[]).unwrap(), CancellationToken::new());
        let _places: Vec<Place> = (0..300).map(place).collect();
        // A fifth is 0.8 more in a load of which a mean server's connections are 1.
        let few = servers[0].connections();
        assert!((85..=95).contains(&few), "{few} of 300");
    }

    #[test]
    fn servers_that_stay_keep_their_state() {
        let pool = pool(2);
        let first = pool.servers()[0].clone();
        let added = pool.update(&[first.address.clone(), "127.0.0.1:1".into()]);
        assert_eq!(added.len(), 1);
        assert!(pool.contains(&first) && pool.servers()[0].is_ready());
    }
}
