"""Named plans: what people write by hand, as search modes, to be run as they are and compared with found ones."""

from __future__ import annotations

from autoshard.plan.plan import Plan
from autoshard.search.named.plans import named_plan
from autoshard.search.named.recipe import Recipe, composed
from autoshard.search.problem import Problem
from autoshard.search.registry import Search, mode_family, search_mode

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("data_parallel", "the batch in parts, all else repeated"),
        Recipe("zero1", "the batch and the optimizer states in parts", zero=1),
        Recipe("zero2", "the batch, the gradients and the optimizer states in parts", zero=2),
        Recipe(
            "zero3", "the batch, the parameters, the gradients and the optimizer states in parts", zero=3, again=True
        ),
        Recipe("zero3_keep", "all that zero3 splits, gathered once a step", zero=3),
        Recipe("megatron", "columns and rows of weights", tensor=True),
        Recipe(
            "megatron_sp",
            "columns and rows of weights, the sequence between them",
            tensor=True,
            sequence=True,
            tokens_again=True,
        ),
        Recipe(
            "megatron_sp_keep", "all that megatron_sp splits, tokens gathered once a step", tensor=True, sequence=True
        ),
        Recipe(
            "fsdp_tp",
            "all that zero3 splits, and columns and rows of weights",
            3,
            True,
            tensor=True,
            sequence=True,
            tokens_again=True,
        ),
        Recipe("hsdp", "all that zero3 splits, in several copies", 3, True, hybrid=True),
        Recipe("expert_parallel", "the batch, and the weights by experts", experts=True),
        Recipe("zero1_ep", "the batch, the optimizer states, and the weights by experts", zero=1, experts=True),
        Recipe("fsdp_ep", "all that zero3 splits, and the weights by experts", 3, True, experts=True),
        Recipe(
            "context_parallel",
            "the sequence in parts, keys and values of all of it for attention",
            context=True,
            keys_again=True,
        ),
        Recipe("context_parallel_keep", "all that context_parallel splits, keys gathered once a step", context=True),
        Recipe("ulysses", "the sequence in parts, attention by heads", context=True, heads=True),
    )
}

__all__ = ["RECIPES", "Recipe", "is_named", "named_plan", "named_plans"]


def named_plans() -> tuple[str, ...]:
    """The names of all named plans."""
    return tuple(RECIPES)


def is_named(mode: str) -> bool:
    """Whether a search mode is a plan known by name, or several of them (`zero3(dp) + megatron_sp(tp)`)."""
    return mode in RECIPES or "(" in mode


def _register(recipe: Recipe) -> None:
    def made(problem: Problem) -> Plan:
        return named_plan(problem, recipe, problem.options.get("axes"))

    made.__doc__ = f"{recipe.words[0].upper()}{recipe.words[1:]}, as written by hand."
    search_mode(recipe.name)(made)


@mode_family("(")
def _composition(name: str) -> Search:
    """Several named plans, each over mesh axes of its own: 'zero3(dp) + megatron_sp(tp)'."""
    recipe = composed(name, RECIPES)
    return lambda problem: named_plan(problem, recipe)


for _recipe in RECIPES.values():
    _register(_recipe)
