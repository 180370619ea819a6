"""Tests the reading of specs, and the defaults. Every mistake must give one line that says what is right."""

from __future__ import annotations

import re
import unittest
from pathlib import Path

from campaigns import MINIMAL, REPOSITORY, fault, spec_of

from hvdb.base import data
from hvdb.base.errors import HvdbError
from hvdb.campaign import bench_options, spec


class SpecTest(unittest.TestCase):
    def test_defaults(self) -> None:
        made = spec_of()
        self.assertEqual(made.ranks, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512))
        self.assertEqual((made.dtypes, made.allreduce_dtypes, made.schedules), (("fp32",), ("fp32",), ("static",)))
        self.assertEqual((made.repetitions, made.seeds, made.efficiency), (1, (1,), True))
        self.assertFalse(made.allow_ragged)
        self.assertIsNone(made.strong)

    def test_the_hash_is_of_the_meaning(self) -> None:
        plain = spec_of()
        commented = spec_of("# why\n" + MINIMAL.replace("batch_size = 4", "batch_size=4  # four"))
        self.assertEqual(plain.hash, commented.hash)
        self.assertNotEqual(plain.hash, spec_of(seeds="[2]").hash)
        self.assertRegex(plain.hash, r"^[0-9a-f]{16}$")

    def test_the_hash_does_not_change_by_itself(self) -> None:
        # This value identifies campaigns on disk. If the value changes, all of them are refused as "another spec".
        self.assertEqual(spec_of().hash, "de6d96a54c6b676e")

    def test_batch_per_model(self) -> None:
        text = 'name = "x"\nmodels = ["vgg16", "inception_v3"]\n[weak]\nbatch_size = {vgg16 = 32, inception3 = 64}'
        made = spec_of(text)
        self.assertEqual(made.models, ("vgg16", "inception3"))
        self.assertEqual(made.weak.batch_size, {"vgg16": 32, "inception3": 64})

    def test_options(self) -> None:
        made = spec_of(
            MINIMAL + '[options]\nimage_size = 64\nno-check = true\nreplay = "/r/{model}.txt"\nmax-time = 1.5'
        )
        expected = (("image-size", "64"), ("no-check", ""), ("replay", "/r/{model}.txt"), ("max-time", "1.5"))
        self.assertEqual(made.options, expected)
        self.assertEqual(made.max_time_seconds(), 1.5)

    def test_replays_may_have_any_name(self) -> None:
        replays = '[options]\nreplay = "/r/{model}.replay"'
        text = MINIMAL.replace('"vgg16"', '"gpt2", "inception_v3", "Llama-3.2_1B"') + replays
        self.assertEqual(spec_of(text).models, ("gpt2", "inception3", "Llama-3.2_1B"))
        for models, pattern in (
            ('["a b"]', r"models\[1\]: 'a b' is not a name of at most 64"),
            ('["../a"]', r"models\[1\]: '../a' is not a name"),
            ('["a", "a"]', "models: holds 'a' twice"),
            ("[]", "models: is an empty list"),
        ):
            self.assertRegex(fault(spec_of, MINIMAL.replace('["vgg16"]', models) + replays), pattern)

    def test_replays_of_steps_that_ship(self) -> None:
        models = MINIMAL.replace('"vgg16"', '"gpt2", "llama"')
        named = spec.replays(spec_of(models + '[options]\nreplay = "{model}"'))
        self.assertEqual(named, {model: data.STEPS / f"{model}.replay" for model in ("gpt2", "llama")})
        with self.assertRaisesRegex(HvdbError, "^gpt3: there is no such file, and the steps that ship are gpt2, llama"):
            spec.replays(spec_of(models + '[options]\nreplay = "gpt3"'))

    def test_mistakes(self) -> None:
        cases = [
            (MINIMAL.replace('models = ["vgg16"]', ""), r"spec.toml: models is missing; it takes a list"),
            ("repetition = 3\n" + MINIMAL, r"repetition: there is no such key \(did you mean repetitions\?\)"),
            (MINIMAL.replace("vgg16", "vgg19"), r"models: 'vgg19' is not one of .*did you mean vgg16"),
            (MINIMAL.replace('"vgg16"', '"inception3", "inception_v3"'), r"one model under two names"),
            (MINIMAL.replace('"small"', '"Small Campaign"'), r"name: 'Small Campaign' is not a name"),
            (MINIMAL.replace("[weak]\nbatch_size = 4", ""), r"neither \[weak\] nor \[strong\]"),
            (MINIMAL.replace("= 4", "= 0"), r"weak.batch_size: 0 is not a whole number from 1"),
            (MINIMAL.replace("= 4", "= {vgg16 = 4, resnet50 = 4}"), r"weak.batch_size.resnet50: there is no such key"),
            (MINIMAL.replace("= 4", "= {}"), r"weak.batch_size: vgg16 is missing"),
            ("ranks = [0]\n" + MINIMAL, r"ranks\[1\]: 0 is not a whole number from 1"),
            ("ranks = [2, 2]\n" + MINIMAL, r"ranks: holds 2 twice"),
            ("seeds = [-1]\n" + MINIMAL, r"seeds\[1\]: -1 is not"),
            (MINIMAL + "[options]\nbatch-size = 3", r"options.batch-size: a campaign takes this from weak.batch_size"),
            (
                MINIMAL + "[options]\nimagesize = 3",
                r"options.imagesize: hvd_bench has no such option \(did you mean imag",
            ),
            (MINIMAL + "[options]\nprofile = true", r"options.profile: .* no table takes profiled runs"),
            (MINIMAL + "[options]\nseed = 1", r"options.seed: a campaign takes this from seeds; leave it out here"),
            (MINIMAL + "[options]\nno-check = 1", r"options.no-check: --no-check is a flag"),
            (MINIMAL + "[options]\nimage-size = true", r"options.image-size: --image-size takes a value"),
            (MINIMAL + "[options]\nimage-size = [1]", r"options.image-size: takes a string, a number, or true"),
            (MINIMAL + '[options]\nmax-time = "long"', r"options.max-time: 'long' is not a number of seconds"),
            (MINIMAL + '[options]\nalgorithm = ""', r"options.algorithm: is empty; give a value, or leave it out"),
            (MINIMAL + '[options]\nreplay = "--tune"', r"options.replay: '--tune' begins like an option"),
            (
                MINIMAL + "[options]\nnum_iters = 2\nnum-iters = 3",
                r"options.num-iters: is --num-iters, as num_iters is",
            ),
            (MINIMAL + "[options]\ntune = false\n--tune = true", r"options.--tune: is --tune, as tune is"),
            ("name = small", r"spec.toml: not TOML: .*line 1"),
        ]
        for text, pattern in cases:
            with self.subTest(pattern):
                said = fault(spec_of, text)
                self.assertRegex(said, pattern)
                self.assertTrue(said.startswith("spec.toml: "), said)

    def test_a_maximal_time_is_one_that_the_program_takes(self) -> None:
        for text in ("0.5", "1e8", '"1_0"', '" 20 "', '"\uff12\uff10"', '"+5"', '"5\\n"', '"inf"', "nan", "-3"):
            with self.subTest(text):
                said = fault(spec_of, MINIMAL + f"[options]\nmax_time = {text}")
                self.assertRegex(said, r"options.max_time: '.*' is not a number of seconds from 1 to 10000000")
        for text, seconds in (("1", 1), ("1e7", 1e7), ('"1.5e+2"', 150), ('"20."', 20)):
            self.assertEqual(spec_of(MINIMAL + f"[options]\nmax-time = {text}").max_time_seconds(), seconds)

    def test_files(self) -> None:
        self.assertRegex(fault(spec.read, Path("/nowhere/x.toml")), "/nowhere/x.toml: cannot be read: No such file")
        self.assertRegex(fault(spec.read, Path("/bin/true")), "/bin/true: not a text file")
        for path in sorted((REPOSITORY / "slurm" / "specs").glob("*.toml")):
            with self.subTest(path.name):
                self.assertEqual(spec.read(path).name, path.stem)


class VariablesOfTheProgramTest(unittest.TestCase):
    def test_the_variables_are_those_of_the_program(self) -> None:
        """A variable that the program reads and a job does not unset would change what a campaign measures, unseen."""
        found: set[str] = set()
        for folder in ("bench", "engine", "models"):
            for path in (REPOSITORY / folder).rglob("*"):
                if path.suffix in (".cpp", ".h", ".cu", ".cuh"):
                    found |= set(re.findall(r'"((?:HOROVOD|HVD)_[A-Z_]+)["= (]', path.read_text(encoding="utf-8")))
        found.remove("HVD_IMAGE_DIGEST")  # is recorded with a run and changes nothing
        self.assertEqual(found, set(bench_options.VARIABLES))
