//! One program and the place it is attached to: attached, detached and attached again while it stays loaded.
//!
//! Used by the loader for every program but a socket's filter. To detach and attach takes a millisecond, to start the agent
//! a quarter of a second: the benchmarks alternate fast enough that both halves meet the same machine (bench/).
//! Does not: choose a program, or find it in its object.

use std::fs::File;
use std::time::Instant;

use aya::Btf;
use aya::programs::cgroup_skb::CgroupSkbLink;
use aya::programs::raw_trace_point::RawTracePointLink;
use aya::programs::tp_btf::BtfTracePointLink;
use aya::programs::{CgroupAttachMode, Program, ProgramError};

/// Where a program belongs.
#[derive(Debug)]
pub enum AttachPoint {
    /// A tracepoint, by name.
    Tracepoint(&'static str),
    /// The packets of a cgroup's sockets and of those below it.
    Packets {
        /// The cgroup.
        cgroup: File,
        /// `ingress` or `egress`, as in the program's section.
        way: &'static str,
    },
}

/// A program's place and the link that keeps it attached.
#[derive(Debug)]
pub struct Hook {
    /// Name of the program in its object.
    program: &'static str,
    place: AttachPoint,
    /// `None` while the program is detached.
    link: Option<HookLink>,
}

/// The program is detached when this is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "held, never read")]
enum HookLink {
    Typed(BtfTracePointLink),
    Raw(RawTracePointLink),
    Packets(CgroupSkbLink),
}

impl Hook {
    /// A hook with nothing attached.
    pub fn new(program: &'static str, place: AttachPoint) -> Hook {
        let link = None;
        Hook { program, place, link }
    }

    /// Name of the program.
    pub fn program(&self) -> &'static str {
        self.program
    }

    /// The place's name, for errors.
    pub fn place(&self) -> &'static str {
        match &self.place {
            AttachPoint::Tracepoint(name) => name,
            AttachPoint::Packets { way, .. } => way,
        }
    }

    /// Loads the program for this place. Once, before it is attached. A BTF-typed tracepoint is resolved now (`btf` is the
    /// kernel's), a raw one at the attachment.
    ///
    /// # Errors
    /// When the verifier rejects the program, or it is not of the kind that the place takes.
    pub fn load(&self, program: &mut Program, btf: &Btf) -> Result<(), ProgramError> {
        let begin = Instant::now();
        match (&mut *program, &self.place) {
            (Program::BtfTracePoint(program), AttachPoint::Tracepoint(name)) => program.load(name, btf)?,
            (Program::RawTracePoint(program), AttachPoint::Tracepoint(_)) => program.load()?,
            (Program::CgroupSkb(program), AttachPoint::Packets { .. }) => program.load()?,
            _ => return Err(ProgramError::UnexpectedProgramType),
        }
        log_load(self.program, begin, program);
        Ok(())
    }

    /// Attaches the loaded program; nothing happens when it is attached.
    ///
    /// # Errors
    /// When the kernel refuses the attachment, for a tracepoint that it does not have for example.
    pub fn attach(&mut self, program: &mut Program) -> Result<(), ProgramError> {
        if self.link.is_some() {
            return Ok(());
        }
        self.link = Some(match (program, &self.place) {
            (Program::BtfTracePoint(program), AttachPoint::Tracepoint(_)) => {
                let link = program.attach()?;
                HookLink::Typed(program.take_link(link)?)
            }
            (Program::RawTracePoint(program), AttachPoint::Tracepoint(name)) => {
                let link = program.attach(name)?;
                HookLink::Raw(program.take_link(link)?)
            }
            (Program::CgroupSkb(program), AttachPoint::Packets { cgroup, .. }) => {
                let way = program.expected_attach_type().as_ref().copied();
                let way = way.ok_or(ProgramError::UnexpectedProgramType)?;
                // A link never replaces the programs of others, whatever the mode (kernel/bpf/cgroup.c,
                // cgroup_bpf_link_attach, since Linux 5.7).
                let link = program.attach(cgroup, way, CgroupAttachMode::Single)?;
                HookLink::Packets(program.take_link(link)?)
            }
            _ => return Err(ProgramError::UnexpectedProgramType),
        });
        Ok(())
    }

    /// Whether the program is attached.
    pub fn is_attached(&self) -> bool {
        self.link.is_some()
    }

    /// Detaches the program.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Detaches the program of a tracepoint and removes it from the kernel.
    pub fn unload(&mut self, program: &mut Program) {
        self.detach();
        // It fails for a program that is not loaded.
        let _ = match program {
            Program::BtfTracePoint(program) => program.unload(),
            Program::RawTracePoint(program) => program.unload(),
            _ => Ok(()),
        };
    }
}

/// Logs how long a program took to load since `begin`, which is the kernel's verifier and compiler: most of the agent's start.
pub fn log_load(name: &str, begin: Instant, program: &Program) {
    let took_us = begin.elapsed().as_micros();
    if tracing::enabled!(tracing::Level::DEBUG) {
        let facts = program.info().ok();
        let verified = facts.and_then(|facts| facts.verified_instruction_count());
        tracing::debug!(
            program = name,
            took_us,
            verified = verified.unwrap_or(0),
            "loaded a program"
        );
    }
}
