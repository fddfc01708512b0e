r"""The inverse Jacobian product of Thm 3.1: the y with J(z′)ᵀ y = v (Eq. 8), for v = ∇_{z′}k(z′, z) and every z.

The paper writes J^{-1}, but means the transpose: the index form in its appendix, (J^{-1})^j_i ∂_j k, is (J^{-T}∇k)_i,
and Eq. 11 computes hᵀJ. There are five solvers, and `Solver` and `ExactSolver` are the bases for others:

- `Block`: exact, by the block-triangular structure of the Jacobian,
      Jᵀ = [Aᵀ Bᵀ; 0 diag σ]  ⇒  y_tail = v_tail / σ,  Aᵀ y_head = v_head − Bᵀ y_tail;
  one factorisation of the k×k block per z′ serves every z, and none is needed if A is diagonal.
- `Dense`: exact, by LU of the full d×d Jacobian.
- `Iterative`: BiCGStab or GMRES, matrix-free, one vjp per iteration (App. C, with the transpose and a fresh start).
- `Helper`: the paper's network h_η(z′, v), trained along with the generator (Eq. 9–11).
- `LeastSquares`: for a generator that fills a surface, with the d×k Jacobian of g.

May import: `_compute`, `generators`, `kernels`, `specs`. Start reading at `base.py`, then `block.py` (exact) and
`helper.py` (the paper's).
"""

from typing import Any

from gpvi.solvers.base import ExactSolver as ExactSolver
from gpvi.solvers.base import InverseProduct as InverseProduct
from gpvi.solvers.base import Solver as Solver
from gpvi.solvers.block import Block as Block
from gpvi.solvers.dense import Dense as Dense
from gpvi.solvers.helper import Helper as Helper
from gpvi.solvers.iterative import Iterative as Iterative
from gpvi.solvers.least_squares import LeastSquares as LeastSquares
from gpvi.specs import resolve


def as_solver(value: Any) -> Solver:
    """Return a solver, given one or its shorthand.

    Parameters
    ----------
    value
        "block", "dense", "bicgstab", "gmres", "helper", "least_squares" or a `Solver`.

    Returns
    -------
    Solver
        The solver.

    Raises
    ------
    gpvi.errors.InputError
        If it is none of these.

    Examples
    --------
    >>> gpvi.solvers.as_solver("gmres").algorithm
    'gmres'
    """
    return resolve(
        value,
        {
            "block": Block,
            "dense": Dense,
            "bicgstab": lambda: Iterative("bicgstab"),
            "gmres": lambda: Iterative("gmres"),
            "helper": Helper,
            "least_squares": LeastSquares,
        },
        "solver",
        Solver,
    )
