"""The wordings of the instructions: all written for this study, with the slots that the methods define."""

from __future__ import annotations

# OpenP5 (Xu et al. 2024): ten wordings that are trained on, then one that is not. {history} holds item words.
SEQUENTIAL = (
    "{dataset} {user} already works with {history} , which server comes next ?",
    "given that {user} of {dataset} has chosen {history} , choose one more server",
    "after {history} , what will {user} add in {dataset} ?",
    "the servers of {user} in {dataset} so far are {history} ; name another",
    "{user} listed {history} in {dataset} . continue the list",
    "in {dataset} , {history} were picked for {user} . the next pick is",
    "what goes well with {history} for {dataset} {user} ?",
    "complete the servers of {dataset} {user} : {history} ,",
    "knowing {history} , predict a further server for {user} of {dataset}",
    "{dataset} : {user} uses {history} and also",
    "if {user} has {history} at hand in {dataset} , what is still missing ?",
)
STRAIGHTFORWARD = (
    "which server does {dataset} {user} need ?",
    "recommend a server to {user} of {dataset}",
    "{dataset} {user} is looking for a server , namely",
    "name something from {dataset} for {user}",
    "what should {user} install from {dataset} ?",
    "for {user} , {dataset} offers",
    "pick one server of {dataset} that suits {user}",
    "{user} will choose from {dataset} the server",
    "the best answer of {dataset} to {user} is",
    "suggest to {user} a server of {dataset}",
    "which entry of {dataset} helps {user} ?",
)

# LC-Rec (Zheng et al. 2024, section III-C): five wordings for each of its tasks. {text} is a task's text, {items} are
# indices, {names} are names, {item} is one index, {name} and {about} belong to one server.
INSTRUCTIONS = {
    "next_item": (
        "Servers chosen so far: {items}. The next server:",
        "Given the servers {items}, predict another one:",
        "A developer works with {items} and adds",
        "Continue this list of servers: {items},",
        "What goes together with {items}?",
    ),
    "index_of_text": (
        "Server {name}: {about} Its index:",
        "Which index belongs to {name}, described as {about}?",
        "Name: {name}. Description: {about} Index:",
        "Find the server called {name}. {about}",
        "{about} This is {name}, with the index",
    ),
    "text_of_index": (
        "Describe the server {item}:",
        "What is the server {item}?",
        "Index {item}. Name and description:",
        "Tell me about {item}:",
        "Which server has the index {item}?",
    ),
    "names_to_index": (
        "Servers by name: {names}. The index of the next:",
        "Given {names}, the index of a further server:",
        "A developer uses {names}. Add the index of one more:",
        "After {names} comes the index",
        "What goes together with {names}? Index:",
    ),
    "indices_to_name": (
        "Servers by index: {items}. The name of the next:",
        "Given {items}, the name of a further server:",
        "A developer uses {items}. Add the name of one more:",
        "After {items} comes the server named",
        "What goes together with {items}? Name:",
    ),
    "search": (
        "Task: {text} Server:",
        "A developer wants: {text} Recommend a server:",
        "Which server helps with this? {text}",
        "Need: {text} A fitting server is",
        "Find a server for the following task. {text}",
    ),
    "search_with_history": (
        "Task: {text} Chosen: {items}. Server:",
        "A developer wants: {text} Having {items}, recommend a server:",
        "Which server beside {items} helps with this? {text}",
        "Need: {text} Beside {items}, a fitting server is",
        "Find a server for the following task that goes with {items}. {text}",
    ),
    "preference": (
        "Servers: {items}. What is the developer's task?",
        "Describe the task that {items} are meant for:",
        "A developer chose {items}. The task:",
        "From {items}, tell what is wanted:",
        "Which need do {items} serve?",
    ),
}
