//! Predicts the bytes of answers by those of earlier ones.

use std::collections::HashMap;

use super::shape::Shape;

/// Patterns that are remembered with all details, and in general.
const MAX_EXACT: usize = 8192;
const MAX_GENERAL: usize = 8192;
/// The prediction for a LIST of one object, or of the pods of one node, before one was seen.
const FEW_BYTES: u64 = 64 << 10;
/// Compressed answers are this much smaller before one was seen. Lists of pods that are alike are 20
/// times smaller; those that differ more, less.
const FIRST_RATIO: f64 = 10.0;

/// What is expected of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Bytes without compression.
    pub bytes: u64,
    /// Bytes without compression for each byte of a compressed answer.
    pub ratio: f64,
}

/// The sizes of answers, by the pattern of their requests.
pub struct Predictor {
    exact: Recent,
    general: Recent,
}

impl Default for Predictor {
    fn default() -> Self {
        Predictor { exact: Recent::new(MAX_EXACT), general: Recent::new(MAX_GENERAL) }
    }
}

impl Predictor {
    /// Predicts an answer. `unknown` is the size of one of whose pattern nothing is known.
    pub fn predict(&mut self, shape: Shape, unknown: u64) -> Prediction {
        let known = self.exact.get(shape.exact).or_else(|| self.general.get(shape.general));
        known.map_or_else(
            || {
                let bytes = if shape.few { FEW_BYTES.min(unknown) } else { unknown };
                Prediction { bytes, ratio: FIRST_RATIO }
            },
            |average| Prediction { bytes: average.bytes as u64, ratio: average.ratio },
        )
    }

    /// Learns from a complete answer. `ratio` is absent if it was not compressed.
    pub fn learn(&mut self, shape: Shape, bytes: u64, ratio: Option<f64>) {
        for average in self.entries(shape, bytes) {
            average.learn(bytes as f64, ratio);
        }
    }

    /// Learns that an answer in progress has at least this size.
    pub fn learn_at_least(&mut self, shape: Shape, bytes: u64) {
        for average in self.entries(shape, bytes) {
            average.bytes = average.bytes.max(bytes as f64);
        }
    }

    fn entries(&mut self, shape: Shape, bytes: u64) -> [&mut Average; 2] {
        let new = Average { bytes: bytes as f64, ratio: FIRST_RATIO };
        [self.exact.entry(shape.exact, new), self.general.entry(shape.general, new)]
    }
}

/// Moving averages.
#[derive(Clone, Copy, Debug)]
struct Average {
    bytes: f64,
    ratio: f64,
}

impl Average {
    /// Follows a growing size faster than a shrinking one: too much in flight is worse than too
    /// little.
    fn learn(&mut self, bytes: f64, ratio: Option<f64>) {
        let weight = if bytes > self.bytes { 0.5 } else { 0.125 };
        self.bytes += (bytes - self.bytes) * weight;
        if let Some(ratio) = ratio {
            self.ratio += (ratio - self.ratio) * 0.5;
        }
    }
}

/// A bounded memory that forgets what was not used recently. What is used moves to the young half;
/// when that is full, it becomes the old half, and the old half is forgotten.
struct Recent {
    young: HashMap<u64, Average>,
    old: HashMap<u64, Average>,
    half: usize,
}

impl Recent {
    fn new(capacity: usize) -> Recent {
        Recent { young: HashMap::new(), old: HashMap::new(), half: capacity / 2 }
    }

    fn get(&mut self, key: u64) -> Option<Average> {
        if let Some(average) = self.young.get(&key) {
            return Some(*average);
        }
        let average = self.old.remove(&key)?;
        Some(*self.entry(key, average))
    }

    fn entry(&mut self, key: u64, new: Average) -> &mut Average {
        let kept = self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.entry(key).or_insert(kept.unwrap_or(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: u64 = 1 << 30;

    fn shape(exact: u64, general: u64) -> Shape {
        Shape { exact, general, few: false }
    }

    fn bytes(predictor: &mut Predictor, shape: Shape) -> u64 {
        predictor.predict(shape, UNKNOWN).bytes
    }

    #[test]
    fn unknown_means_large() {
        let mut predictor = Predictor::default();
        assert_eq!(bytes(&mut predictor, shape(1, 1)), UNKNOWN);
        assert_eq!(bytes(&mut predictor, Shape { few: true, ..shape(1, 1) }), FEW_BYTES);
    }

    #[test]
    fn the_average_rises_faster_than_it_falls() {
        let (mut predictor, shape) = (Predictor::default(), shape(1, 1));
        predictor.learn(shape, 1000, None);
        assert_eq!(bytes(&mut predictor, shape), 1000);
        predictor.learn(shape, 2000, None);
        assert_eq!(bytes(&mut predictor, shape), 1500);
        predictor.learn(shape, 700, None);
        assert_eq!(bytes(&mut predictor, shape), 1400);
        predictor.learn_at_least(shape, 5000);
        predictor.learn_at_least(shape, 10);
        assert_eq!(bytes(&mut predictor, shape), 5000);
        (0..100).for_each(|_| predictor.learn(shape, 300, Some(4.0)));
        let prediction = predictor.predict(shape, UNKNOWN);
        assert!((300..310).contains(&prediction.bytes) && (prediction.ratio - 4.0).abs() < 1e-9);
    }

    #[test]
    fn any_number_of_user_agents_leaves_the_general_pattern() {
        let mut predictor = Predictor::default();
        let busy = shape(7, 7);
        predictor.learn(busy, 500, None);
        for agent in 100..100_000 {
            predictor.learn(shape(agent, 1), 9, None);
            assert_eq!(bytes(&mut predictor, busy), 500, "a pattern in use is kept");
        }
        assert!(predictor.exact.young.len() + predictor.exact.old.len() <= MAX_EXACT);
        assert_eq!(bytes(&mut predictor, shape(3, 1)), 9);
        assert_eq!(bytes(&mut predictor, shape(100, 1)), 9, "forgotten, but known in general");
    }
}
