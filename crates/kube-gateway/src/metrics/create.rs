//! Creates metrics.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Upper bounds of durations, in seconds.
const SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

/// Creates and registers metrics. Their names are constants of this file, so that an error is a
/// mistake in it.
pub struct Create<'a>(pub &'a Registry);

impl Create<'_> {
    /// Registers a collector.
    pub fn register(&self, metric: impl prometheus::core::Collector + 'static) {
        self.0.register(Box::new(metric)).expect("each metric is registered once");
    }

    /// Creates a counter.
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        let metric = IntCounter::new(name, help).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    /// Creates counters with labels.
    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        let metric = IntCounterVec::new(Opts::new(name, help), labels).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    /// Creates a gauge.
    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        let metric = IntGauge::new(name, help).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    /// Creates gauges with the label `server`.
    pub fn gauges(&self, name: &str, help: &str) -> IntGaugeVec {
        self.gauges_by(name, help, &["server"])
    }

    /// Creates gauges with labels.
    pub fn gauges_by(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        let metric = IntGaugeVec::new(Opts::new(name, help), labels).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    /// Creates a histogram of seconds.
    pub fn histogram(&self, name: &str, help: &str) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let metric = Histogram::with_opts(options).expect("the name is valid");
        self.register(metric.clone());
        metric
    }

    /// Creates histograms of seconds with labels.
    pub fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        let metric = HistogramVec::new(options, labels).expect("the name is valid");
        self.register(metric.clone());
        metric
    }
}
