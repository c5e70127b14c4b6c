//! Rules that say how simulated containers behave.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Deserializer};

use crate::selector::Labels;

/// How the containers of a pod behave.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// From the arrival of the pod, or from the end of an init container, to the start of the next
    /// container: what pulling an image and starting a container takes.
    pub start_delay: Duration,
    /// For how long each init container runs.
    pub init_time: Duration,
    /// From the start of the containers until they are ready.
    pub readiness_delay: Duration,
    /// For how long the containers run; `None` for ever.
    pub run_time: Option<Duration>,
    /// The exit code of containers that fail.
    pub exit_code: i32,
    /// The probability with which containers that end have failed.
    pub failure_probability: f64,
    /// From the deletion of the pod until its containers end. The grace period bounds it.
    pub termination_delay: Duration,
}

/// All rules in order.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    others: Behaviour,
    jobs: Behaviour,
}

/// A pod as far as rules look at it.
pub struct Subject<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// Whether a Job controls it.
    pub is_of_job: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    /// Labels that the pod must have.
    #[serde(default)]
    selector: BTreeMap<String, String>,
    namespace: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    start_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    init_time: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    readiness_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    run_time: Option<Duration>,
    exit_code: Option<i32>,
    failure_probability: Option<f64>,
    #[serde(default, deserialize_with = "duration")]
    termination_delay: Option<Duration>,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Rules {
    /// Rules without a file. Pods of Jobs succeed after `job_run_time`; all others run for ever.
    pub fn new(start_delay: Duration, job_run_time: Duration) -> Rules {
        let others = Behaviour {
            start_delay,
            init_time: Duration::ZERO,
            readiness_delay: Duration::ZERO,
            run_time: None,
            exit_code: 1,
            failure_probability: 0.0,
            termination_delay: Duration::ZERO,
        };
        let jobs = Behaviour { run_time: Some(job_run_time), ..others.clone() };
        Rules { rules: Vec::new(), others, jobs }
    }

    /// Adds the rules of a file.
    ///
    /// # Errors
    /// Returns a one-line message that names the file and the first invalid field.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        self.parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(&mut self, text: &str) -> Result<()> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            // The first line has the position and the reason; the others print the source.
            let message = error.to_string();
            anyhow::anyhow!("{}", message.lines().next().unwrap_or_default().to_owned())
        })?;
        for (at, rule) in file.rules.iter().enumerate() {
            let probability = rule.failure_probability.unwrap_or_default();
            ensure!(
                (0.0..=1.0).contains(&probability),
                "rules[{at}]: failureProbability must be from 0 to 1"
            );
            let code = rule.exit_code.unwrap_or(1);
            ensure!((0..=255).contains(&code), "rules[{at}]: exitCode must be from 0 to 255");
        }
        self.rules.extend(file.rules);
        Ok(())
    }

    /// How the containers of a pod behave: as the first rule says that selects the pod.
    pub fn behaviour(&self, subject: &Subject<'_>) -> Behaviour {
        let base = if subject.is_of_job { &self.jobs } else { &self.others };
        let rule = self.rules.iter().find(|rule| rule.selects(subject));
        rule.map_or_else(|| base.clone(), |rule| rule.apply(base))
    }
}

impl Rule {
    fn selects(&self, subject: &Subject<'_>) -> bool {
        let has = |(key, value): (&String, &String)| subject.labels.get(key) == Some(value);
        self.namespace.as_deref().is_none_or(|namespace| namespace == subject.namespace)
            && self.selector.iter().all(has)
    }

    fn apply(&self, base: &Behaviour) -> Behaviour {
        // An exit code other than 0 means that the containers fail, unless a probability is given.
        let fails = self.exit_code.is_some_and(|code| code != 0);
        let probability = if fails { 1.0 } else { base.failure_probability };
        Behaviour {
            start_delay: self.start_delay.unwrap_or(base.start_delay),
            init_time: self.init_time.unwrap_or(base.init_time),
            readiness_delay: self.readiness_delay.unwrap_or(base.readiness_delay),
            run_time: self.run_time.or(base.run_time),
            exit_code: self.exit_code.unwrap_or(base.exit_code),
            failure_probability: self.failure_probability.unwrap_or(probability),
            termination_delay: self.termination_delay.unwrap_or(base.termination_delay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
rules:
- selector: {app: flaky}
  startDelay: 2s
  runTime: 30s
  exitCode: 3
  failureProbability: 0.25
- namespace: batch
  selector: {app: web}
  exitCode: 7
- selector: {}
  readinessDelay: 500ms
";

    fn rules(text: &str) -> Result<Rules> {
        let mut rules = Rules::new(Duration::from_millis(100), Duration::from_secs(1));
        rules.parse(text).map(|()| rules)
    }

    #[test]
    fn the_first_rule_that_selects_a_pod_decides() {
        let rules = rules(FILE).unwrap();
        let behaviour = |namespace, app: &str, is_of_job| {
            let labels = Labels::from([("app".to_owned(), app.to_owned())]);
            rules.behaviour(&Subject { namespace, labels: &labels, is_of_job })
        };
        let flaky = behaviour("default", "flaky", false);
        assert_eq!((flaky.exit_code, flaky.failure_probability), (3, 0.25));
        assert_eq!(flaky.run_time, Some(Duration::from_secs(30)));
        let web = behaviour("batch", "web", false);
        assert_eq!((web.exit_code, web.failure_probability), (7, 1.0));
        assert_eq!(web.start_delay, Duration::from_millis(100));
        let other = behaviour("default", "web", true);
        assert_eq!(other.readiness_delay, Duration::from_millis(500));
        assert_eq!(other.run_time, Some(Duration::from_secs(1)), "the default of Jobs");
    }

    #[test]
    fn invalid_rules_are_rejected_with_their_place() {
        for (text, message) in [
            ("rules: [{failureProbability: 2}]", "rules[0]: failureProbability"),
            ("rules: [{}, {exitCode: 300}]", "rules[1]: exitCode"),
            ("rules: [{startDelay: x}]", ""),
            ("rules: [{unknown: 1}]", "unknown"),
            ("{}", "rules"),
        ] {
            let error = rules(text).unwrap_err().to_string();
            assert!(error.contains(message) && !error.contains('\n'), "{error}");
        }
    }
}
