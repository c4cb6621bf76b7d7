//! `--device`: where models are to run.

use std::fmt;
use std::str::FromStr;

use candle_core::{Device, utils};

/// A place to compute, as it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A device if one is there that this build can use, else the processor.
    #[default]
    Auto,
    /// The processor, with the daemon's own kernels.
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
    /// The GPU of a Mac.
    Metal,
    /// The processor, as a device among others: what runs on a GPU, where there is none.
    CandleCpu,
}

/// An opened device, for the KV cache of each model on it.
#[derive(Clone)]
pub struct Target {
    /// The device.
    pub device: Device,
    /// Most bytes of KV cache of a model there.
    pub memory: usize,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// Its back end was left out of the build.
    #[error("this build cannot use device {choice}: it lacks the feature {feature}")]
    NotBuilt {
        /// What was asked for.
        choice: Choice,
        /// What it takes.
        feature: &'static str,
    },
    /// There is none, or its driver does not work.
    #[error("cannot open device {choice}: {error}")]
    NotThere {
        /// What was asked for.
        choice: Choice,
        /// What the driver said.
        error: candle_core::Error,
    },
}

impl Choice {
    /// Opens the device; `None` is the processor.
    ///
    /// # Errors
    /// When it is not there, or this build cannot use it.
    pub fn open(self, memory: usize) -> Result<Option<Target>, NoDevice> {
        let device = match self {
            Self::Auto => [Self::Cuda(0), Self::Metal].into_iter().find_map(|gpu| gpu.gpu().ok()),
            Self::Cpu => None,
            Self::CandleCpu => Some(Device::Cpu),
            Self::Cuda(_) | Self::Metal => Some(self.gpu()?),
        };
        Ok(device.map(|device| Target { device, memory }))
    }

    fn gpu(self) -> Result<Device, NoDevice> {
        let (is_built, feature) = match self {
            Self::Metal => (utils::metal_is_available(), "metal"),
            _ => (utils::cuda_is_available(), "cuda"),
        };
        if !is_built {
            return Err(NoDevice::NotBuilt { choice: self, feature });
        }
        let opened = match self {
            Self::Cuda(number) => Device::new_cuda(number),
            _ => Device::new_metal(0),
        };
        opened.map_err(|error| NoDevice::NotThere { choice: self, error })
    }
}

impl Target {
    /// The name and the version of its arithmetic: part of every fingerprint. Devices do not share
    /// bits with each other, nor with the processor.
    pub fn label(&self) -> &'static str {
        match self.device {
            Device::Cpu => "candle-cpu-1",
            Device::Cuda(_) => "candle-cuda-1",
            Device::Metal(_) => "candle-metal-1",
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bytes for KV", self.label(), self.memory)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Metal => f.write_str("metal"),
            Self::CandleCpu => f.write_str("candle-cpu"),
        }
    }
}

/// The name of no device.
#[derive(Debug, thiserror::Error)]
#[error("unknown device {0:?}; known are auto, cpu, cuda[:N], metal, candle-cpu")]
pub struct UnknownDevice(String);

impl FromStr for Choice {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        let known = [Self::Auto, Self::Cpu, Self::Metal, Self::CandleCpu];
        let number = match name.split_once(':') {
            Some(("cuda", number)) => number.parse().ok(),
            _ => (name == "cuda").then_some(0),
        };
        let known = known.into_iter().find(|choice| choice.to_string() == name);
        known.or(number.map(Self::Cuda)).ok_or_else(|| UnknownDevice(name.to_owned()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_and_choices_stand_for_each_other() {
        for name in ["auto", "cpu", "cuda:0", "cuda:3", "metal", "candle-cpu"] {
            assert_eq!(name.parse::<Choice>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse::<Choice>().unwrap(), Choice::Cuda(0));
        for name in ["", "gpu", "cuda:", "cuda:x", "cpu:1"] {
            assert!(name.parse::<Choice>().unwrap_err().to_string().contains("candle-cpu"));
        }
    }

    #[test]
    fn the_processor_is_what_is_there_without_a_gpu() {
        assert!(Choice::Cpu.open(1).unwrap().is_none());
        assert_eq!(Choice::CandleCpu.open(7).unwrap().unwrap().memory, 7);
        if !cfg!(any(feature = "cuda", feature = "metal")) {
            assert!(Choice::Auto.open(1).unwrap().is_none());
            let refused = Choice::Cuda(2).open(1).unwrap_err().to_string();
            assert!(refused.contains("cuda:2") && refused.contains("feature cuda"), "{refused}");
        }
    }
}
