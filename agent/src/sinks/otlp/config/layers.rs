//! The three origins of a setting, looked up in order of precedence.
//!
//! Used by `config.rs` only. Does not: parse a value (`parse.rs` does), or read the process environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use hyper::header::HeaderMap;
use sandglass_model::ClockAnchor;

use super::setting::{Setting, SettingOrigin};
use super::{
    Connection, OtlpProtocol, ResourceAttributes, SettingError, Settings, Signal, SpoolOptions, Tuning, defaults, parse,
};
use crate::sinks::sampling::Policy;
use crate::tls::TlsFiles;

/// The three origins.
pub(super) struct SettingLayers<'a> {
    pub(super) flags: &'a Settings,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) file: &'a Settings,
    /// Of which signal the variables are looked up.
    pub(super) signal: Signal,
}

impl SettingLayers<'_> {
    /// Why the standard variables switch export off, if they do.
    pub(super) fn switched_off(&self) -> Option<String> {
        self.sdk_disabled()
            .or_else(|| self.exporter("OTEL_TRACES_EXPORTER")?.err())
    }

    /// `OTEL_SDK_DISABLED`.
    pub(super) fn sdk_disabled(&self) -> Option<String> {
        let found = self.variable("OTEL_SDK_DISABLED")?;
        let disabled = found.value.eq_ignore_ascii_case("true");
        disabled.then(|| "OTEL_SDK_DISABLED is true".to_owned())
    }

    /// Whether a list of exporters has `otlp`; the error says that it does not. `None` if it is not set.
    pub(super) fn exporter(&self, name: &str) -> Option<Result<(), String>> {
        let list = self.variable(name)?.value;
        let has_otlp = list.split(',').any(|exporter| exporter.trim() == "otlp");
        Some(match has_otlp {
            true => Ok(()),
            false => Err(format!("{name} is {list:?}, not otlp")),
        })
    }

    /// The way to the collector; `None` without an endpoint.
    pub(super) fn connection(&self) -> Result<Option<Connection>, SettingError> {
        let protocol = match self.text("protocol", "PROTOCOL", |settings| settings.protocol.clone()) {
            Some(found) => parse::protocol(&found)?,
            None => OtlpProtocol::Http,
        };
        let insecure = match self.text("insecure", "INSECURE", |settings| {
            settings.insecure.map(|insecure| insecure.to_string())
        }) {
            Some(found) => parse::boolean(&found)?,
            None => false,
        };
        let Some(endpoint) = self.endpoint() else {
            return Ok(None);
        };
        Ok(Some(Connection {
            signal: self.signal,
            target: parse::target(&endpoint, protocol, insecure, self.signal)?,
            protocol,
            headers: self.headers()?,
            gzip: match self.text("compression", "COMPRESSION", |settings| settings.compression.clone()) {
                Some(found) => parse::compression(&found)?,
                None => true,
            },
            timeout: match self.text("timeout_ms", "TIMEOUT", |settings| {
                settings.timeout_ms.map(|timeout| timeout.to_string())
            }) {
                Some(found) => parse::timeout(&found)?,
                None => defaults::TIMEOUT,
            },
            tls: self.tls()?,
        }))
    }

    fn endpoint(&self) -> Option<Setting> {
        self.text("endpoint", "ENDPOINT", |settings| settings.endpoint.clone())
    }

    pub(super) fn headers(&self) -> Result<HeaderMap, SettingError> {
        let own = |settings: &Settings, origin: &str| match &settings.headers {
            Some(headers) => parse::header_table(headers, origin).map(Some),
            None => Ok(None),
        };
        if let Some(headers) = own(self.flags, "the flag for otlp.headers")? {
            return Ok(headers);
        }
        if let Some(found) = self.otlp_variable("HEADERS") {
            return parse::header_list(&found);
        }
        Ok(own(self.file, "otlp.headers")?.unwrap_or_default())
    }

    pub(super) fn tls(&self) -> Result<TlsFiles, SettingError> {
        let path = |key, variable, get: fn(&Settings) -> Option<PathBuf>| {
            self.text(key, variable, |settings| {
                get(settings).map(|path| path.to_string_lossy().into_owned())
            })
            .map(|found| PathBuf::from(found.value))
        };
        let certificate = path("client_certificate_file", "CLIENT_CERTIFICATE", |settings| {
            settings.client_certificate_file.clone()
        });
        let key = path("client_key_file", "CLIENT_KEY", |settings| {
            settings.client_key_file.clone()
        });
        Ok(TlsFiles {
            ca: path("ca_file", "CERTIFICATE", |settings| settings.ca_file.clone()),
            client: match (certificate, key) {
                (Some(certificate), Some(key)) => Some((certificate, key)),
                (None, None) => None,
                (Some(_), None) => return Err(SettingError::HalfClient { missing: "its key" }),
                (None, Some(_)) => {
                    return Err(SettingError::HalfClient {
                        missing: "the certificate",
                    });
                }
            },
        })
    }

    /// `service.name` of the environment, and the attributes added to every resource. Attributes of the agent's own pod are
    /// left out: a resource describes the pod whose sandbox was created, or none.
    pub(super) fn resource(&self) -> Result<(Option<String>, ResourceAttributes), SettingError> {
        let mut attributes: BTreeMap<String, String> = self.file.resource.clone().unwrap_or_default();
        if let Some(found) = self.variable("OTEL_RESOURCE_ATTRIBUTES") {
            attributes.extend(parse::attributes(&found)?);
        }
        attributes.extend(self.flags.resource.clone().unwrap_or_default());
        let listed = attributes.remove("service.name");
        let service = self.variable("OTEL_SERVICE_NAME").map(|found| found.value).or(listed);
        attributes.retain(|key, _| !OWN_POD.iter().any(|prefix| key.starts_with(prefix)));
        Ok((service, attributes.into_iter().collect()))
    }

    /// Which traces are sent. `OTEL_TRACES_SAMPLER` is no origin: none of its values sends what is bad.
    pub(super) fn sampling(&self) -> Result<Policy, SettingError> {
        let good_per_thousand = self.number(
            "good_per_thousand",
            |settings| settings.good_per_thousand.map(u64::from),
            0,
            1_000,
            u64::from(defaults::GOOD_PER_THOUSAND),
        )?;
        let slow = self.number(
            "slow_ms",
            |settings| settings.slow_ms,
            1,
            3_600_000,
            defaults::SLOW.as_millis() as u64,
        )?;
        let origins = [(self.flags, "the flag for otlp.sampling"), (self.file, "otlp.sampling")];
        let found = origins
            .into_iter()
            .find_map(|(settings, origin)| settings.sampling.as_deref().map(|value| (value, origin)));
        match found {
            None | Some(("all", _)) => Ok(Policy::All),
            Some(("bad", _)) => Ok(Policy::Bad {
                good_per_thousand: u32::try_from(good_per_thousand).unwrap_or(defaults::GOOD_PER_THOUSAND),
                slow_ns: slow * 1_000_000,
            }),
            Some((other, origin)) => Err(SettingError::Value {
                origin: origin.to_owned(),
                problem: format!("{other:?} is no policy"),
                hint: "write all, or bad for the bad traces and otlp.good_per_thousand of the good ones",
            }),
        }
    }

    /// A number by precedence: flag, file, default.
    pub(super) fn number(
        &self,
        key: &'static str,
        get: fn(&Settings) -> Option<u64>,
        least: u64,
        most: u64,
        otherwise: u64,
    ) -> Result<u64, SettingError> {
        let origins = [(self.flags, "the flag for otlp."), (self.file, "otlp.")];
        let found = origins
            .into_iter()
            .find_map(|(settings, origin)| get(settings).map(|value| (value, origin)));
        match found {
            Some((value, origin)) if !(least..=most).contains(&value) => Err(SettingError::Value {
                origin: format!("{origin}{key}"),
                problem: format!("{value} is not between {least} and {most}"),
                hint: "leave it out for the default",
            }),
            Some((value, _)) => Ok(value),
            None => Ok(otherwise),
        }
    }

    pub(super) fn tuning(&self) -> Result<Tuning, SettingError> {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Ok(Tuning {
            batch_spans: size(self.number(
                "batch_spans",
                |settings| settings.batch_spans.map(u64::from),
                1,
                8_192,
                defaults::BATCH_SPANS as u64,
            )?),
            batch_delay: Duration::from_millis(self.number(
                "batch_delay_ms",
                |settings| settings.batch_delay_ms,
                0,
                60_000,
                defaults::BATCH_DELAY.as_millis() as u64,
            )?),
            queue_traces: size(self.number(
                "queue_traces",
                |settings| settings.queue_traces.map(u64::from),
                1,
                1_000_000,
                defaults::QUEUE_TRACES as u64,
            )?),
            queue_bytes: size(self.number(
                "queue_bytes",
                |settings| settings.queue_bytes,
                1 << 20,
                1 << 32,
                defaults::QUEUE_BYTES as u64,
            )?),
            batch_bytes: defaults::BATCH_BYTES,
            queue_requests: defaults::QUEUE_REQUESTS,
            backoff_initial: defaults::BACKOFF_INITIAL,
            backoff_max: defaults::BACKOFF_MAX,
            seed: None,
        })
    }

    /// The spool, if a directory is configured. Relative paths are refused: the working directory of a service is arbitrary.
    pub(super) fn spool(&self) -> Result<Option<SpoolOptions>, SettingError> {
        let bytes = self.number(
            "spool_bytes",
            |settings| settings.spool_bytes,
            1 << 20,
            1 << 40,
            defaults::SPOOL_BYTES,
        )?;
        let hours = self.number(
            "spool_hours",
            |settings| settings.spool_hours,
            1,
            720,
            defaults::SPOOL_HOURS,
        )?;
        let origins = [(self.flags, "the flag for otlp."), (self.file, "otlp.")];
        let found = origins
            .into_iter()
            .find_map(|(settings, origin)| Some((settings.spool_directory.clone()?, origin)));
        let Some((directory, origin)) = found.filter(|(directory, _)| !directory.as_os_str().is_empty()) else {
            return Ok(None);
        };
        if !directory.has_root() {
            return Err(SettingError::Value {
                origin: format!("{origin}spool_directory"),
                problem: format!("{} is not an absolute path", directory.display()),
                hint: "write a path such as /var/lib/sandglass/spool",
            });
        }
        Ok(Some(SpoolOptions {
            directory,
            bytes,
            age: Duration::from_secs(hours * 3_600),
            clock: wall_clock_only,
        }))
    }

    /// A value by precedence: flag, the signal's variable, general variable, file.
    pub(super) fn text(&self, key: &str, variable: &str, own: impl Fn(&Settings) -> Option<String>) -> Option<Setting> {
        let from = |settings, origin: String| {
            own(settings).filter(|value| !value.is_empty()).map(|value| Setting {
                value,
                origin,
                kind: SettingOrigin::Own,
            })
        };
        from(self.flags, format!("the flag for otlp.{key}"))
            .or_else(|| self.otlp_variable(variable))
            .or_else(|| from(self.file, format!("otlp.{key}")))
    }

    fn otlp_variable(&self, name: &str) -> Option<Setting> {
        let of_all = || self.variable(&format!("OTEL_EXPORTER_OTLP_{name}"));
        self.variable_of_signal(name).or_else(of_all)
    }

    pub(super) fn variable_of_signal(&self, name: &str) -> Option<Setting> {
        let found = self.variable(&format!("OTEL_EXPORTER_OTLP_{}_{name}", self.signal.variable()))?;
        Some(Setting {
            kind: SettingOrigin::OfSignal,
            ..found
        })
    }

    pub(super) fn variable(&self, name: &str) -> Option<Setting> {
        let value = (self.env)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| Setting {
            value: value.to_owned(),
            origin: name.to_owned(),
            kind: SettingOrigin::General,
        })
    }
}

fn wall_clock_only() -> ClockAnchor {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    ClockAnchor {
        boot_ns: unix_ns,
        unix_ns,
    }
}

/// Prefixes of attributes that, in the agent's environment, describe the agent's own pod.
const OWN_POD: [&str; 4] = ["k8s.pod.", "k8s.namespace.", "k8s.container.", "k8s.daemonset."];
