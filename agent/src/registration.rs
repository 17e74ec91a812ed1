//! How a part of the agent registers its metrics: one line each, with name and help text.
//!
//! Used by `health` and by the sinks. A block holds the metrics of one subject. Does not: keep a metric; its owner does, and the
//! registry has a handle of it. A leaf.

/// Registers metrics: `"name": metric, "help text";`, where the registry adds its prefix, and `_total` to a counter.
macro_rules! register {
    ($registry:expr, $($name:literal: $metric:expr, $help:literal;)*) => {
        $($registry.register($name, $help, $metric.clone());)*
    };
}

pub(crate) use register;
