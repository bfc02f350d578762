//! Metrics as they are collected, and the text that they become: OpenMetrics, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use serde_json::json;

/// What is called so in JSON, as a label.
pub fn word(value: impl Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_string()
}

/// All that is told at once.
#[derive(Debug, Default)]
pub struct Families {
    all: Vec<Family>,
}

/// One metric, with a sample for each set of labels.
#[derive(Debug)]
pub struct Family {
    /// Without the unit, and without what its kind adds.
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Vec<(&'static str, String)>, Sample)>,
}

#[derive(Debug)]
enum Sample {
    Counter(ConstCounter),
    Gauge(ConstGauge<f64>),
    Histogram(Histogram),
}

impl Families {
    /// What only grows.
    pub fn counter(&mut self, name: &'static str, unit: Option<Unit>, help: &'static str) -> &mut Family {
        self.family(name, unit, help, MetricType::Counter)
    }

    /// What is so just now.
    pub fn gauge(&mut self, name: &'static str, unit: Option<Unit>, help: &'static str) -> &mut Family {
        self.family(name, unit, help, MetricType::Gauge)
    }

    /// How long things took.
    pub fn durations(&mut self, name: &'static str, help: &'static str) -> &mut Family {
        self.family(name, Some(Unit::Seconds), help, MetricType::Histogram)
    }

    fn family(
        &mut self,
        name: &'static str,
        unit: Option<Unit>,
        help: &'static str,
        kind: MetricType,
    ) -> &mut Family {
        self.all.push_mut(Family { name, unit, help, kind, samples: Vec::new() })
    }

    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("rekindle");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Family {
    pub fn count(&mut self, labels: &[(&'static str, &str)], count: u64) {
        self.add(labels, Sample::Counter(ConstCounter::new(count)));
    }

    pub fn is(&mut self, labels: &[(&'static str, &str)], value: u64) {
        self.add(labels, Sample::Gauge(ConstGauge::new(value as f64)));
    }

    /// If there is a value; a bound that is not given has no sample.
    pub fn may_be(&mut self, labels: &[(&'static str, &str)], value: Option<u64>) {
        if let Some(value) = value {
            self.is(labels, value);
        }
    }

    pub fn took(&mut self, labels: &[(&'static str, &str)], histogram: &Histogram) {
        self.add(labels, Sample::Histogram(histogram.clone()));
    }

    fn add(&mut self, labels: &[(&'static str, &str)], sample: Sample) {
        let labels = labels.iter().map(|(name, value)| (*name, value.to_string())).collect();
        self.samples.push((labels, sample));
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Family { name, unit, help, kind, samples } in &self.all {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            for (labels, sample) in samples {
                sample.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Sample {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Sample::Counter(counter) => counter.encode(encoder),
            Sample::Gauge(gauge) => gauge.encode(encoder),
            Sample::Histogram(histogram) => histogram.encode(encoder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_help_and_its_samples() {
        let mut families = Families::default();
        let family = families.counter("fetched", Some(Unit::Bytes), "Bytes that came.");
        family.count(&[("gpu", "emulated:\"x\"")], 3);
        let family = families.gauge("queued", None, "Requests that wait.");
        family.is(&[], 2);
        family.may_be(&[("service", "web")], None);
        let histogram = Histogram::new([0.5]);
        histogram.observe(0.25);
        families.durations("took", "How long it took.").took(&[], &histogram);
        let text = families.text().unwrap();
        let expected = [
            "# HELP rekindle_fetched_bytes Bytes that came.",
            "# TYPE rekindle_fetched_bytes counter",
            "# UNIT rekindle_fetched_bytes bytes",
            r#"rekindle_fetched_bytes_total{gpu="emulated:\"x\""} 3"#,
            "# HELP rekindle_queued Requests that wait.",
            "# TYPE rekindle_queued gauge",
            "rekindle_queued{} 2.0",
            "# HELP rekindle_took_seconds How long it took.",
            "# TYPE rekindle_took_seconds histogram",
            "# UNIT rekindle_took_seconds seconds",
            "rekindle_took_seconds_sum{} 0.25",
            "rekindle_took_seconds_count{} 1",
            r#"rekindle_took_seconds_bucket{le="0.5"} 1"#,
            r#"rekindle_took_seconds_bucket{le="+Inf"} 1"#,
            "# EOF",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
