//! Keeps the load of the API servers even by moving client connections.
//!
//! A connection that must move gets a GOAWAY: its running requests end where they are, and the client
//! dials again for new ones. Its watches are ended between two events
//! (`forward/watch.rs`). The new connection goes to the less loaded of two servers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::config::{Balance, Configuration};
use crate::metrics::Metrics;
use crate::upstream::{Change, Pool, Server, Standing, loads};

/// An API server's watch caches start with the state of about the time when it became ready.
const CACHE_MARGIN: Duration = Duration::from_secs(2);
/// Time between two plans, in which clients dial again.
const PLAN_PERIOD: Duration = Duration::from_secs(5);

/// Whether every API server can continue a watch.
pub struct Freshness(Arc<Pool>);

impl Freshness {
    /// For the API servers of this pool.
    pub fn new(pool: Arc<Pool>) -> Freshness {
        Freshness(pool)
    }

    /// Whether a client that got an event at `event` can watch on at any API server that is ready:
    /// the event must be younger than the watch caches of all.
    pub fn allows(&self, event: Instant) -> bool {
        let servers = self.0.servers();
        let mut ready = servers.iter().filter(|server| server.is_ready());
        ready.all(|server| event.elapsed() + CACHE_MARGIN < server.ready_for())
    }
}

/// Moves connections until the process ends.
pub async fn balance_forever(
    pool: Arc<Pool>,
    config: Arc<ArcSwap<Configuration>>,
    metrics: Arc<Metrics>,
) {
    let mut balancer = Balancer::new(pool, Balance::default());
    loop {
        balancer.options = config.load().balance.clone();
        // A jitter keeps the gateways of one cluster apart.
        let mean = 1.0 / balancer.options.moves_per_second;
        let pause = Duration::from_secs_f64(mean * rand::random_range(0.5..1.5));
        tokio::time::sleep(pause).await;
        metrics.connections_moved(balancer.move_some(Instant::now()));
    }
}

struct Balancer {
    pool: Arc<Pool>,
    options: Balance,
    /// All servers that may still have connections.
    known: Vec<Arc<Server>>,
    /// What each server has yet to lose, by its address.
    plan: HashMap<String, Loss>,
    /// The next plan is not made before.
    next_plan: Instant,
}

/// What a server has yet to lose.
#[derive(Default)]
struct Loss {
    weight: usize,
    /// Only connections of a lower weight are moved. A heavier one would take the server below the
    /// mean and another one above it, again and again.
    limit: usize,
}

impl Balancer {
    fn new(pool: Arc<Pool>, options: Balance) -> Balancer {
        let (known, plan) = Default::default();
        Balancer { pool, options, known, plan, next_plan: Instant::now() }
    }

    /// Moves at most one connection of each server. Returns the number of moved connections.
    fn move_some(&mut self, now: Instant) -> usize {
        self.update_known();
        let servers = self.pool.servers();
        let ready: Vec<_> = servers.iter().filter(|server| server.is_ready()).cloned().collect();
        if ready.is_empty() {
            return 0;
        }
        self.plan_refusals(now, &ready);
        if self.plan.is_empty() && now >= self.next_plan {
            self.make_plan(&ready);
            self.next_plan = now + PLAN_PERIOD;
        }
        let is_ready = |server: &&Arc<Server>| ready.iter().any(|other| Arc::ptr_eq(other, server));
        let leaving = self.known.iter().filter(|server| !is_ready(server));
        let mut moved = leaving.filter_map(|server| server.move_one(usize::MAX)).count();
        for server in &ready {
            moved += usize::from(self.move_planned(server));
        }
        self.plan.retain(|_, loss| loss.weight > 0);
        moved
    }

    fn update_known(&mut self) {
        for server in self.pool.servers().iter() {
            if !self.known.iter().any(|known| Arc::ptr_eq(known, server)) {
                self.known.push(server.clone());
            }
        }
        self.known.retain(|server| self.pool.contains(server) || server.connections() > 0);
    }

    /// Plans what each overloaded server loses down to the mean. Connections that were told to move
    /// count nowhere until their clients have dialled again, so a plan is carried out before the next
    /// one is made. A server that a new connection would choose loses nothing: its connections would
    /// come back. Servers that refuse their clients are left out: they get none.
    fn make_plan(&mut self, ready: &[Arc<Server>]) {
        let open: Vec<_> =
            ready.iter().filter(|server| server.standing() == Standing::Open).cloned().collect();
        let loads = loads(&open);
        let mean_load = loads.iter().sum::<f64>() / open.len() as f64;
        let weights: Vec<usize> = open.iter().map(|server| server.weight()).collect();
        let mean = weights.iter().sum::<usize>() as f64 / open.len() as f64;
        // A difference of two connections cannot be improved.
        let limit = (mean * (1.0 + self.options.imbalance)).max(mean + 2.0);
        for ((server, &weight), load) in open.iter().zip(&weights).zip(loads) {
            if weight as f64 > limit && load > mean_load * (1.0 + self.options.imbalance) {
                let weight = weight - mean.ceil() as usize;
                // One more than the loss, because the mean is rounded.
                let loss = Loss { weight, limit: weight + 2 };
                self.plan.insert(server.address.clone(), loss);
            }
        }
        if ready.iter().any(|server| matches!(server.standing(), Standing::Trial(1..))) {
            self.plan_trial(&open);
        }
    }

    /// Plans that one connection leaves the server with most, to try another one after its back-off.
    fn plan_trial(&mut self, open: &[Arc<Server>]) {
        if let Some(server) = open.iter().max_by_key(|server| server.weight()) {
            let one = Loss { weight: 1, limit: usize::MAX };
            self.plan.entry(server.address.clone()).or_insert(one);
        }
    }

    /// Plans what servers that refuse their clients lose, unless all do.
    fn plan_refusals(&mut self, now: Instant, ready: &[Arc<Server>]) {
        let refusing: Vec<_> =
            ready.iter().filter_map(|server| Some((server, self.judge(now, server)?))).collect();
        if ready.iter().all(|server| server.standing() != Standing::Open) {
            return;
        }
        for (server, share) in refusing {
            let weight = (server.weight() as f64 * share).ceil() as usize;
            let planned = self.plan.entry(server.address.clone()).or_default();
            *planned = Loss { weight: weight.max(planned.weight), limit: usize::MAX };
        }
    }

    /// Judges a server's answers. Returns the share of its load that it loses.
    fn judge(&self, now: Instant, server: &Server) -> Option<f64> {
        let change = server.judge_answers(now, self.options.too_many_requests)?;
        let (share, message) = match change {
            Change::Shed(share) => (Some(share), "an API server answers 429, it loses clients"),
            Change::Trial => (None, "some clients try an API server that answered 429"),
            Change::Open => (None, "an API server that answered 429 serves clients again"),
        };
        let back_off = server.last_back_off().as_secs();
        tracing::info!(server = server.address, back_off_seconds = back_off, message);
        share
    }

    /// Moves a connection of this server if the plan says so.
    fn move_planned(&mut self, server: &Arc<Server>) -> bool {
        let Some(loss) = self.plan.get_mut(&server.address).filter(|loss| loss.weight > 0) else {
            return false;
        };
        let moved = server.move_one(loss.limit);
        // A server without such a connection has nothing to lose.
        loss.weight = moved.map_or(0, |weight| loss.weight.saturating_sub(weight));
        moved.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::upstream::Place;

    fn balancer(servers: usize) -> (Balancer, Arc<Vec<Arc<Server>>>) {
        let addresses: Vec<_> = (0..servers).map(|n| format!("127.0.0.1:{n}")).collect();
        let pool = Arc::new(Pool::new(&addresses));
        let servers = pool.servers();
        servers.iter().for_each(|server| assert!(server.set_ready(true)));
        (Balancer::new(pool, Balance::default()), servers)
    }

    fn places(server: &Arc<Server>, count: usize) -> Vec<Place> {
        (0..count).map(|_| Place::new(server.clone(), CancellationToken::new())).collect()
    }

    /// Moves `times` times without a new plan. Returns the number of moved connections.
    fn move_often(balancer: &mut Balancer, times: usize) -> usize {
        let now = Instant::now();
        (0..times).map(|_| balancer.move_some(now)).sum()
    }

    #[test]
    fn a_server_that_returns_gets_its_share() {
        let (mut balancer, servers) = balancer(3);
        let _places = [places(&servers[0], 150), places(&servers[1], 150)];
        assert_eq!(move_often(&mut balancer, 200), 100);
        assert_eq!(servers[0].connections(), 100);
    }

    #[test]
    fn an_even_load_stays() {
        let (mut balancer, servers) = balancer(2);
        let _places = [places(&servers[0], 50), places(&servers[1], 55)];
        assert_eq!(move_often(&mut balancer, 50), 0);
    }

    /// Adds watches to a connection.
    fn watch(place: &Place, count: usize) {
        place.member().streams.fetch_add(count, Relaxed);
        place.server().watches.fetch_add(count, Relaxed);
    }

    #[test]
    fn a_connection_that_is_the_whole_difference_stays() {
        let (mut balancer, servers) = balancer(2);
        let places = [places(&servers[0], 1), places(&servers[1], 3)];
        watch(&places[0][0], 80);
        assert_eq!(move_often(&mut balancer, 50), 0);
    }

    #[test]
    fn light_connections_leave_a_server_with_a_heavy_one_until_new_ones_choose_it() {
        let (mut balancer, servers) = balancer(2);
        let mut heavy = places(&servers[0], 11);
        watch(&heavy[0], 80);
        let _light = places(&servers[1], 3);
        assert_eq!(move_often(&mut balancer, 50), 10);
        assert!(servers[0].weight() == 81 && servers[0].connections() == 1);
        heavy.truncate(1);
        let pool = balancer.pool.clone();
        let dial = |_| Place::new(pool.choose(&[]).unwrap(), CancellationToken::new());
        let _again: Vec<_> = (0..10).map(dial).collect();
        balancer.next_plan = Instant::now();
        assert_eq!(move_often(&mut balancer, 50), 0);
    }

    #[test]
    fn an_unready_server_loses_all_connections() {
        let (mut balancer, servers) = balancer(2);
        let _places = [places(&servers[0], 10), places(&servers[1], 10)];
        servers[0].set_ready(false);
        assert_eq!(move_often(&mut balancer, 50), 10);
        assert_eq!(servers[1].connections(), 10);
    }

    /// Lets a server answer 429 in a row that is long enough, and so moves connections. Returns the
    /// time of the end.
    fn refuse(balancer: &mut Balancer, server: &Server, now: Instant) -> Instant {
        let end = now + Duration::from_secs(2);
        (0..balancer.options.too_many_requests).for_each(|_| server.answered(true));
        balancer.move_some(now);
        server.answered(true);
        (0..50).for_each(|_| _ = balancer.move_some(end));
        end
    }

    #[test]
    fn a_row_of_refusals_costs_connections() {
        let (mut balancer, servers) = balancer(2);
        let _places = [places(&servers[0], 40), places(&servers[1], 40)];
        let now = refuse(&mut balancer, &servers[0], Instant::now());
        assert_eq!(servers[0].connections(), 38);
        refuse(&mut balancer, &servers[0], now);
        assert_eq!(servers[0].connections(), 34);
        assert_eq!(servers[1].connections(), 40);
    }

    #[test]
    fn a_server_that_refuses_gets_no_connections_to_even_the_load() {
        let (mut balancer, servers) = balancer(3);
        let _places = [places(&servers[0], 1), places(&servers[1], 40), places(&servers[2], 40)];
        let now = refuse(&mut balancer, &servers[0], Instant::now());
        balancer.next_plan = now;
        assert_eq!(balancer.move_some(now), 0);
        // After the back-off one client after the other tries it.
        for count in 1..=3 {
            let now = now + Duration::from_secs(10) + PLAN_PERIOD * count;
            assert_eq!((0..50).map(|_| balancer.move_some(now)).sum::<usize>(), 1);
            assert!(Arc::ptr_eq(&balancer.pool.choose(&[]).unwrap(), &servers[0]));
        }
        let now = now + Duration::from_secs(12) + PLAN_PERIOD * 4;
        assert_eq!(balancer.move_some(now), 0);
    }

    #[test]
    fn no_server_loses_connections_if_all_refuse() {
        let (mut balancer, servers) = balancer(2);
        let _places = [places(&servers[0], 40), places(&servers[1], 40)];
        let (limit, start) = (balancer.options.too_many_requests, Instant::now());
        for now in [start, start + Duration::from_secs(2)] {
            servers.iter().for_each(|server| (0..limit).for_each(|_| server.answered(true)));
            assert_eq!(balancer.move_some(now), 0);
        }
        assert!(servers.iter().all(|server| server.standing() == Standing::BackOff));
    }
}
