//! Handles steps of silos: which sandbox a silo belongs to, and the callbacks of drivers for it.
//!
//! Used by `windows.rs`. A silo is a job object with namespaces of its own, the kernel's side of a Windows container.
//! Drivers that registered a silo monitor (`PsRegisterSiloMonitor`, ntddk.h) are called for each server silo that is
//! created or terminated. Events: Microsoft-Windows-Kernel-Process 13 and 14 (job started, terminated), 22 (silo
//! state), 23 to 26 (callbacks), which all name the silo's GUID and its job. Does not: keep silos; they are keys of
//! sandboxes.

use sandglass_model::Timestamp;
use sandglass_model::windows::{ActivityChange, ActivityStep, ObjectKey, Service, SiloChange, SiloStep};

use crate::context::Context;
use crate::windows::Windows;
use crate::windows::stage::Stage;

impl Windows {
    /// A step of a silo. Its GUID and job belong to one sandbox.
    pub(crate) fn on_silo(&mut self, ctx: &mut Context, at: Timestamp, step: &SiloStep) {
        let keys = [ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)];
        // Its keys are removed with the sandbox; the number of its job may be another's by now.
        if step.step == SiloChange::Terminated {
            return;
        }
        self.objects.join_keys(ctx, at, &keys);
        if self.objects.keys.owner_of(&keys).is_none() && step.step == SiloChange::Started {
            // A silo is made for a container. The only sandbox that can wait for one is likely its owner.
            let waits = self
                .objects
                .sandboxes
                .in_stage(Stage::Creating)
                .filter(|(_, sandbox)| sandbox.called);
            let waits: Vec<u64> = waits.map(|(number, _)| number).collect();
            // Several that wait are left without: a later event names silo and container together.
            if let [number] = waits[..] {
                self.objects.learn(ctx, at, number, keys[0].clone());
                self.objects.learn(ctx, at, number, keys[1].clone());
            }
        }
        self.silo_callback(ctx, at, step);
    }

    /// A callback of a driver began or ended: an activity of the silo.
    pub(crate) fn silo_callback(&mut self, ctx: &mut Context, at: Timestamp, step: &SiloStep) {
        let (monitor, change) = match &step.step {
            SiloChange::CallbackStarted { monitor } => (monitor, ActivityChange::Started),
            SiloChange::CallbackStopped { monitor, status } => {
                let (result, message) = (Some(*status), String::new());
                (monitor, ActivityChange::Stopped { result, message })
            }
            SiloChange::Started | SiloChange::State(_) | SiloChange::Terminated => return,
        };
        let name = if monitor.is_empty() {
            "callback"
        } else {
            monitor.as_str()
        };
        // As an activity of thread 0: callbacks of drivers name no thread, and nest in nothing.
        self.on_activity(
            ctx,
            at,
            ActivityStep {
                service: Service::Silo,
                name: format!("callback {name}"),
                activity: step.silo.clone(),
                related: String::new(),
                pid: 0,
                tid: 0,
                step: change,
                keys: vec![ObjectKey::Silo(step.silo.clone()), ObjectKey::Job(step.job)],
                fields: Default::default(),
            },
        );
    }
}
