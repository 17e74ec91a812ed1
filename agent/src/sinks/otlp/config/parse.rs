//! Parsers of single settings: endpoint, protocol, headers, compression, time, resource attributes.
//!
//! Used by `config.rs` and `layers.rs`. Every error names the origin of the value and never shows a header's value. Does not:
//! look values up.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use super::setting::{Setting, SettingOrigin};
use super::{OtlpProtocol, Secret, SettingError, Signal, Target};
use crate::grpc::percent_decode;

pub(super) fn protocol(found: &Setting) -> Result<OtlpProtocol, SettingError> {
    match found.value.as_str() {
        "http/protobuf" => Ok(OtlpProtocol::Http),
        "grpc" => Ok(OtlpProtocol::Grpc),
        "http/json" => Err(found.refuse("http/json is not supported", PROTOCOLS)),
        other => Err(found.refuse(format!("{other:?} is not an OTLP protocol"), PROTOCOLS)),
    }
}

pub(super) fn compression(found: &Setting) -> Result<bool, SettingError> {
    match found.value.to_ascii_lowercase().as_str() {
        "gzip" => Ok(true),
        "none" => Ok(false),
        other => Err(found.refuse(format!("{other:?} is not supported"), "use gzip or none")),
    }
}

pub(super) fn boolean(found: &Setting) -> Result<bool, SettingError> {
    match found.value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(found.refuse(format!("{other:?} is neither true nor false"), "use true or false")),
    }
}

pub(super) fn timeout(found: &Setting) -> Result<Duration, SettingError> {
    match found.value.parse() {
        Ok(millis @ 1..=600_000) => Ok(Duration::from_millis(millis)),
        _ => Err(found.refuse(
            format!("{:?} is not a number of milliseconds from 1 to 600000", found.value),
            "write milliseconds, e.g. 10000",
        )),
    }
}

/// The target of requests. The signal's path is appended to a general endpoint only (OTLP exporter specification, "Endpoint
/// URLs for OTLP/HTTP").
pub(super) fn target(
    found: &Setting,
    protocol: OtlpProtocol,
    insecure: bool,
    signal: Signal,
) -> Result<Target, SettingError> {
    let hint = match protocol {
        OtlpProtocol::Http => "write a URL such as http://collector:4318",
        OtlpProtocol::Grpc => "write a URL such as http://collector:4317, or host:port",
    };
    let text = match (found.value.contains("://"), protocol) {
        (true, _) => found.value.clone(),
        (false, OtlpProtocol::Grpc) if insecure => format!("http://{}", found.value),
        (false, OtlpProtocol::Grpc) => format!("https://{}", found.value),
        (false, OtlpProtocol::Http) => return Err(found.refuse("it has no scheme", hint)),
    };
    let uri: Uri = text.parse().map_err(|_| found.refuse("it is not a URL", hint))?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(found.refuse("its scheme is neither http nor https", hint)),
    };
    if uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        return Err(found.refuse("it holds a user name", "send credentials in headers instead"));
    }
    let host = uri
        .host()
        .map(|host| host.trim_start_matches('[').trim_end_matches(']'))
        .filter(|host| !host.is_empty())
        .ok_or_else(|| found.refuse("it has no host", hint))?;
    let port = match uri.authority().map(|authority| authority.as_str()) {
        // The crate `http` returns no port for one that is out of range.
        Some(authority) if authority.ends_with(':') || has_bad_port(authority, uri.port_u16()) => {
            return Err(found.refuse("its port is not a number from 1 to 65535", hint));
        }
        _ => uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
    };
    Ok(Target {
        tls,
        host: host.to_owned(),
        port,
        path: path(found, protocol, signal, &uri)?,
    })
}

fn has_bad_port(authority: &str, port: Option<u16>) -> bool {
    let after_host = authority.rsplit(']').next().unwrap_or(authority);
    after_host.contains(':') && port.is_none_or(|port| port == 0)
}

fn path(found: &Setting, protocol: OtlpProtocol, signal: Signal, uri: &Uri) -> Result<String, SettingError> {
    let path = uri.path();
    match (protocol, found.kind) {
        (OtlpProtocol::Grpc, _) if path == "/" || path.is_empty() => Ok(String::new()),
        (OtlpProtocol::Grpc, _) => Err(found.refuse(
            format!("a gRPC endpoint has no path, this one has {path:?}"),
            "write only scheme, host and port, or set the protocol to http/protobuf",
        )),
        (OtlpProtocol::Http, SettingOrigin::OfSignal) => Ok(uri
            .path_and_query()
            .map_or_else(|| "/".to_owned(), |whole| whole.as_str().to_owned())),
        (OtlpProtocol::Http, _) if uri.query().is_some() => Err(found.refuse(
            "a base URL has no query",
            match signal {
                Signal::Traces => "use OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, which is taken as it is",
                Signal::Metrics => "use OTEL_EXPORTER_OTLP_METRICS_ENDPOINT, which is taken as it is",
            },
        )),
        (OtlpProtocol::Http, SettingOrigin::Own) => {
            // `otlp.endpoint` may end in the path of traces, and is that of metrics too.
            let path = path.trim_end_matches('/');
            let base = [Signal::Traces, Signal::Metrics]
                .into_iter()
                .find_map(|signal| path.strip_suffix(signal.path()));
            Ok(format!("{}{}", base.unwrap_or(path), signal.path()))
        }
        (OtlpProtocol::Http, SettingOrigin::General) => Ok(format!("{}{}", path.trim_end_matches('/'), signal.path())),
    }
}

/// `name=value,name=value`, values percent-encoded (W3C Baggage without properties).
pub(super) fn header_list(found: &Setting) -> Result<HeaderMap, SettingError> {
    let mut headers = HeaderMap::new();
    for (index, pair) in pairs(&found.value).enumerate() {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(found.refuse(format!("pair {} has no '='", index + 1), HEADER_LIST));
        };
        insert_header(
            &mut headers,
            &found.origin,
            &percent_decode(name.trim()),
            &percent_decode(value.trim()),
        )?;
    }
    Ok(headers)
}

pub(super) fn header_table(table: &BTreeMap<String, Secret>, origin: &str) -> Result<HeaderMap, SettingError> {
    let mut headers = HeaderMap::new();
    for (name, value) in table {
        insert_header(&mut headers, origin, name, &value.0)?;
    }
    Ok(headers)
}

fn insert_header(headers: &mut HeaderMap, origin: &str, name: &str, value: &str) -> Result<(), SettingError> {
    let refuse = |problem: String, hint| SettingError::Value {
        origin: origin.to_owned(),
        problem,
        hint,
    };
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| refuse(format!("{name:?} is not a header name"), HEADER_LIST))?;
    if RESERVED.contains(&parsed.as_str()) || parsed.as_str().starts_with("grpc-") {
        return Err(refuse(
            format!("the header {parsed} is set by the exporter itself"),
            "leave it out",
        ));
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        refuse(
            format!("the value of {parsed} holds characters that a header cannot"),
            HEADER_LIST,
        )
    })?;
    value.set_sensitive(true);
    headers.insert(parsed, value);
    Ok(())
}

/// `key=value,key=value`, both percent-encoded.
pub(super) fn attributes(found: &Setting) -> Result<Vec<(String, String)>, SettingError> {
    pairs(&found.value)
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((percent_decode(key.trim()), percent_decode(value.trim())))
            }
            _ => Err(found.refuse(
                format!("{pair:?} is not key=value"),
                "write key=value,key=value; encode ',' in a value as %2C",
            )),
        })
        .collect()
}

fn pairs(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|pair| !pair.is_empty())
}

const PROTOCOLS: &str = "use http/protobuf or grpc";
const HEADER_LIST: &str = "write name=value,name=value; encode ',' in a value as %2C";
const RESERVED: [&str; 8] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "transfer-encoding",
];
