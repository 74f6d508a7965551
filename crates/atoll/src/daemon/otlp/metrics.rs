//! The metrics of `/metrics` as metrics of OpenTelemetry: read from the same text, so that both always say the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use tokio_util::sync::CancellationToken;

use super::send::Collector;
use super::{LAST_WORD, now_ns, resource, scope, text};

/// How often they are sent.
const EVERY: Duration = Duration::from_secs(15);

/// Sends the metrics that `read` gives until `stop` fires, and once more then, if the last request was answered.
pub(crate) async fn follow(
    collector: Collector,
    read: Arc<dyn Fn() -> String + Send + Sync>,
    stop: CancellationToken,
) {
    let began_ns = now_ns();
    loop {
        let stopped = tokio::time::timeout(EVERY, stop.cancelled()).await.is_ok();
        if stopped && !collector.is_reached() {
            return;
        }
        let request = request(&read(), began_ns, now_ns());
        if stopped {
            let _late = tokio::time::timeout(LAST_WORD, collector.send(&request)).await;
            return;
        }
        collector.send(&request).await;
    }
}

fn request(exposition: &str, began_ns: u64, now_ns: u64) -> ExportMetricsServiceRequest {
    let metrics =
        families(exposition).into_iter().filter_map(|family| family.metric(began_ns, now_ns)).collect();
    let scope_metrics = vec![ScopeMetrics { scope: scope(), metrics, schema_url: String::new() }];
    let resource_metrics = ResourceMetrics { resource: resource(), scope_metrics, schema_url: String::new() };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
}

type Labels = BTreeMap<String, String>;

/// One metric with all that was measured of it.
#[derive(Debug, Default, PartialEq)]
struct Family {
    name: String,
    help: String,
    unit: String,
    kind: String,
    /// The suffix that follows its name, labels, and the number.
    samples: Vec<(String, Labels, f64)>,
}

/// Reads the text format of OpenMetrics, as this server writes it. Lines that make no sense are passed over.
fn families(text: &str) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (Some(what), Some(name)) = (words.next(), words.next()) else { continue };
            let said = words.next().unwrap_or_default();
            if all.last().is_none_or(|family| family.name != name) {
                all.push(Family { name: name.to_owned(), ..Family::default() });
            }
            let Some(family) = all.last_mut() else { continue };
            match what {
                "HELP" => said.clone_into(&mut family.help),
                "TYPE" => said.clone_into(&mut family.kind),
                "UNIT" => said.clone_into(&mut family.unit),
                _ => {}
            }
        } else if let Some(family) = all.last_mut()
            && let Some(sample) = sample(line, &family.name)
        {
            family.samples.push(sample);
        }
    }
    all
}

fn sample(line: &str, name: &str) -> Option<(String, Labels, f64)> {
    let rest = line.strip_prefix(name)?;
    let (suffix, labels, rest) = match rest.split_once('{') {
        Some((suffix, rest)) if !suffix.contains(' ') => {
            let (labels, rest) = labels(rest)?;
            (suffix, labels, rest)
        }
        _ => {
            let (suffix, rest) = rest.split_once(' ')?;
            (suffix, Labels::new(), rest)
        }
    };
    let number = rest.split_whitespace().next()?.parse().ok()?;
    Some((suffix.to_owned(), labels, number))
}

/// Labels up to the closing brace, and the text that follows it.
fn labels(mut text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        text = text.trim_start_matches(',');
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels.insert(name.to_owned(), value);
        text = &rest[end + 1..];
    }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value)).collect()
}

impl Family {
    fn metric(self, began_ns: u64, now_ns: u64) -> Option<Metric> {
        let data = match self.kind.as_str() {
            "counter" => Data::Sum(Sum {
                data_points: self.points("_total", began_ns, now_ns),
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
            "gauge" => Data::Gauge(Gauge { data_points: self.points("", 0, now_ns) }),
            "info" => Data::Gauge(Gauge { data_points: self.points("_info", 0, now_ns) }),
            "histogram" => Data::Histogram(Histogram {
                data_points: self.histograms(began_ns, now_ns),
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
            }),
            _ => return None,
        };
        let unit = match self.unit.as_str() {
            "seconds" => "s",
            "bytes" => "By",
            other => other,
        };
        let (unit, description) = (unit.to_owned(), self.help);
        Some(Metric { name: self.name, description, unit, metadata: Vec::new(), data: Some(data) })
    }

    fn points(&self, suffix: &str, began_ns: u64, now_ns: u64) -> Vec<NumberDataPoint> {
        let own = self.samples.iter().filter(|(found, ..)| found == suffix);
        own.map(|(_, labels, number)| NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: began_ns,
            time_unix_nano: now_ns,
            value: Some(Value::AsDouble(*number)),
            ..NumberDataPoint::default()
        })
        .collect()
    }

    fn histograms(&self, began_ns: u64, now_ns: u64) -> Vec<HistogramDataPoint> {
        let mut all: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
        for (suffix, labels, number) in &self.samples {
            let mut labels = labels.clone();
            let bound = labels.remove("le");
            let point = all.entry(labels).or_default();
            match (suffix.as_str(), bound) {
                ("_sum", _) => point.sum = Some(*number),
                ("_count", _) => point.count = whole(*number),
                ("_bucket", Some(bound)) => {
                    // Here each bucket counts itself and all below it, there each counts itself.
                    let below = point.bucket_counts.iter().sum();
                    point.bucket_counts.push(whole(*number).saturating_sub(below));
                    point.explicit_bounds.extend(bound.parse::<f64>().ok().filter(|bound| bound.is_finite()));
                }
                _ => {}
            }
        }
        let finished = all.into_iter().map(|(labels, point)| HistogramDataPoint {
            attributes: attributes(&labels),
            start_time_unix_nano: began_ns,
            time_unix_nano: now_ns,
            ..point
        });
        finished.collect()
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, as it was written")]
fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP atoll_requests Requests.\n# TYPE atoll_requests counter\n\
        atoll_requests_total{route=\"/v1/a\",odd=\"a\\\"b}\\n,\\\\\"} 3\natoll_requests_total 4\n\
        # HELP atoll_up_bytes Up.\n# TYPE atoll_up_bytes gauge\n# UNIT atoll_up_bytes bytes\natoll_up_bytes 1.5\n\
        # TYPE took_seconds histogram\n# UNIT took_seconds seconds\ntook_seconds_sum{m=\"GET\"} 2.5\ntook_seconds_count{m=\"GET\"} 6\n\
        took_seconds_bucket{le=\"0.1\",m=\"GET\"} 1\ntook_seconds_bucket{le=\"1.0\",m=\"GET\"} 4\ntook_seconds_bucket{le=\"+Inf\",m=\"GET\"} 6\n\
        garbage\ntook_seconds{\ntook_seconds_bucket{le=\"\ntook_seconds_sum x\n# EOF\n";

    fn metrics() -> Vec<Metric> {
        let request = request(TEXT, 1, 2);
        request.resource_metrics[0].scope_metrics[0].metrics.clone()
    }

    #[test]
    fn what_is_exposed_is_sent() {
        let all = metrics();
        let names: Vec<_> = all.iter().map(|one| (one.name.as_str(), one.unit.as_str())).collect();
        assert_eq!(names, [("atoll_requests", ""), ("atoll_up_bytes", "By"), ("took_seconds", "s")]);
        let Some(Data::Sum(sum)) = &all[0].data else { panic!("{:?}", all[0]) };
        assert!(sum.is_monotonic && sum.data_points.len() == 2);
        assert_eq!(sum.data_points[0].value, Some(Value::AsDouble(3.0)));
        assert_eq!(sum.data_points[0].attributes[0], text("odd", "a\"b}\n,\\"));
        let Some(Data::Gauge(gauge)) = &all[1].data else { panic!("{:?}", all[1]) };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(1.5)));
        let Some(Data::Histogram(histogram)) = &all[2].data else { panic!("{:?}", all[2]) };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (6, Some(2.5)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[1, 3, 2][..], &[0.1, 1.0][..]));
    }
}
